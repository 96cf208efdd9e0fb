"""A network that is this machine's alone: a namespace that holds loopback and nothing else (Linux).

What is local stays local: a process that has entered cannot send a byte to another machine, whatever a library in it
tries (iroh's port mapper looks for routers by multicast and cannot be told not to). Children inherit it. An ordinary
user can enter where the system lets users make namespaces; elsewhere the answer is False, and the caller says so.

Processes that start apart share one by a holder: `python -m waggle.net.namespace hold` makes it, says `ready` and keeps
it until its input ends; `python -m waggle.net.namespace enter PID COMMAND...` becomes a command inside it.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

from waggle.core.errors import RunError

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
NOT_ALLOWED = 3
"""Exit code of a holder where the system does not allow it."""
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP = 0x1


def loopback_only() -> bool:
    """Move this process to a network of its own; False where the system does not allow it, and nothing has changed.

    To be called before any thread is started: a process with threads cannot change its user namespace.
    """
    if sys.platform != "linux" or not _works():
        return False
    with contextlib.suppress(OSError):  # where there are threads after all
        _enter()
        return True
    return False


def _works() -> bool:
    """Try it in a child: some systems let a process leave its network and then refuse it the rest."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            _enter()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _enter() -> None:
    user, group = os.getuid(), os.getgid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NET) != 0:
        if unshare(_NEW_USER | _NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made")
        with contextlib.suppress(OSError):  # kernels that do not know it do not ask for it
            Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", asked)[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def enter(holder: int) -> None:
    """Move this process to the network of another one of the same user. It must not have started a thread yet.

    Raises:
        OSError: it is gone, or somebody else's.
    """
    setns = ctypes.CDLL(None, use_errno=True).setns
    for kind in ("user", "net"):
        theirs = f"/proc/{holder}/ns/{kind}"
        if os.readlink(theirs) == os.readlink(f"/proc/self/ns/{kind}"):
            continue
        with open(theirs) as namespace:
            if setns(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the network", theirs)


def enter_held(file: Path) -> None:
    """Enter the network whose holder is named in a file; where it is empty there is none to enter.

    Raises:
        RunError: the holder is gone, or belongs to somebody else.
    """
    holder = file.read_text("utf-8").strip() if file.exists() else ""
    if not holder.isdecimal():
        return
    try:
        enter(int(holder))
    except OSError as error:
        raise RunError(
            f"the swarm in {file.parent} is not running, or belongs to somebody else; start it first"
        ) from error


def main(arguments: list[str]) -> int:
    """Hold a network, or become a command in one; see the module."""
    if arguments == ["hold"]:
        if not loopback_only():
            return NOT_ALLOWED
        os.write(1, b"ready\n")
        sys.stdin.buffer.read()
        return 0
    word, holder, *command = arguments
    assert word == "enter", "expected: hold, or enter PID COMMAND"
    enter(int(holder))
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
