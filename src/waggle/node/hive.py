"""The nodes of `waggle swarm`, a process each: started, watched, started again, and ended with the command.

Every node is an ordinary `waggle join --resume FOLDER`, told by its run folder where to listen and whom to meet. They
share a network of their own that holds loopback and nothing else (`net/namespace.py`), so nothing leaves the machine;
the command itself stays outside. A node that dies is started again, later each time, and continues from its folder; one
that keeps dying without a round is given up, and the others go on. A node ends when its input does, so none outlives
the command, however that ends.
"""

import errno
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waggle.net.namespace import NOT_ALLOWED
from waggle.node.runfolder import RunFolder, is_locked

FIRST_PORT = 4201
READY_S, QUIT_S = 10.0, 120.0
"""How long a network may take to be made, and a node to finish its round and store where it stands."""
MAX_SHORT = 5
"""A node that died so often in a row without a round is given up."""
MAX_WAIT_S = 60.0
_SAYS = 300
Say = Callable[[str], None]
Command = Callable[[Path], list[str]]


def addresses(num: int) -> list[tuple[str, str]]:
    """Where each of so many nodes listens, on ports that are free here too, should they get no network of their own."""
    free = (port for port in range(FIRST_PORT, 1 << 16) if _is_free(port))
    return [(f"127.0.0.1:{port}", f"[::1]:{port}") for port in itertools.islice(free, num)]


def _is_free(port: int) -> bool:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                tried.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # else this machine does not speak that family
                return False
    return True


@dataclass
class Member:
    """One node's process, and what is known of those before it."""

    folder: RunFolder
    process: subprocess.Popen[bytes] | None = None
    metrics_bytes: int = 0
    """What it had to show when it was started."""
    due_s: float = 0.0
    """When it is to be started."""
    short: int = 0
    """How often in a row it died without having played a round."""
    ended: bool = False
    given_up: bool = False


def node_command(path: Path) -> list[str]:
    """What a user would type to continue a node."""
    return [sys.executable, "-m", "waggle", "join", "--resume", str(path), "--quiet", "--tied"]


class Hive:
    """Use as a context manager: whatever happens, no process is left behind.

    Args:
        folders: the nodes' run folders, not locked.
        say: tells people what happened.
        command: what plays the node of a folder until its input ends.
        apart: whether the nodes get a network of their own, where the system has one.
    """

    def __init__(
        self, folders: Sequence[RunFolder], say: Say, command: Command = node_command, apart: bool = True
    ) -> None:
        self.members = [Member(folder) for folder in folders]
        self._say, self._command, self._apart = say, command, apart
        self._holder: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def __enter__(self) -> "Hive":
        if self._apart:
            self._hold_network()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.process:
                member.process.kill()
                member.process.wait()
                _close(member.process)
        if self._holder:
            self._holder.kill()
            self._holder.wait()
            _close(self._holder)

    @property
    def holder(self) -> int | None:
        """The process that holds the nodes' network, where they have one of their own."""
        return self._holder.pid if self._holder else None

    def _hold_network(self) -> None:
        holder = subprocess.Popen(
            [sys.executable, "-m", "waggle.net.namespace", "hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert holder.stdout is not None
        self._holder = holder
        if holder.stdout.readline() == b"ready\n":
            return
        code = holder.wait(READY_S)
        _close(holder)
        self._holder = None
        why = "this system does not let users make one" if code == NOT_ALLOWED else f"it ended with code {code}"
        self._say(
            f"the nodes have no network of their own ({why}): they listen on loopback alone, but the network library "
            "looks for a router by multicast"
        )

    def look(self) -> bool:
        """Start whom it is time to start, take note of who has ended. Whether any node is still to be waited for."""
        for member in self.members:
            if member.process and (code := member.process.poll()) is not None:
                self._take_end(member, code)
            elif not (member.process or member.ended or self._stopping) and time.monotonic() >= member.due_s:
                self._start(member)
        return any(member.process or not (member.ended or self._stopping) for member in self.members)

    def stop(self) -> None:
        """Ask every node to end after its round."""
        self._stopping = True
        for member in self.members:
            if member.process and member.process.stdin:
                member.process.stdin.close()

    def _start(self, member: Member) -> None:
        if is_locked(member.folder.path):  # of a command that was killed: it ends with its round
            member.due_s = time.monotonic() + 1.0
            return
        enter = [sys.executable, "-m", "waggle.net.namespace", "enter", str(self.holder)] if self._holder else []
        apart = {"HF_HUB_OFFLINE": "1"} if self._holder else {}
        with open(member.folder.log_file, "wb") as log:
            member.process = subprocess.Popen(
                [*enter, *self._command(member.folder.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **apart},
                start_new_session=True,  # Ctrl-C is the command's to handle
            )
        member.metrics_bytes = _size(member.folder.metrics_file)

    def _take_end(self, member: Member, code: int) -> None:
        assert member.process is not None
        _close(member.process)
        member.process = None
        if code == 0 or self._stopping:
            member.ended = True
            return
        played = _size(member.folder.metrics_file) != member.metrics_bytes
        member.short = 0 if played else member.short + 1
        name, why = member.folder.path.name, _last_words(member.folder.log_file, code)
        if member.short >= MAX_SHORT:
            member.ended = member.given_up = True
            self._say(
                f"{name} died {MAX_SHORT} times without a round and is given up; the others go on. It said: {why}"
            )
            return
        wait_s = min(MAX_WAIT_S, 2.0**member.short)
        member.due_s = time.monotonic() + wait_s
        self._say(f"{name} died ({why}); it is started again in {wait_s:.0f} s")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _last_words(log: Path, code: int) -> str:
    """What a process said last, or how it ended."""
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    said = lines[-1].removeprefix("waggle: ")[:_SAYS] if lines and code > 0 else ""
    return said or (f"killed by signal {-code}" if code < 0 else f"code {code}")


def _close(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
