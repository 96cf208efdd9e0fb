"""The folder of one node's run: what is where, its format version, and the lock that keeps it to one process.

RUN/
  run.json         format version, when and by which release it was made
  config.toml      the resolved configuration
  charter.bin      the swarm, canonical bytes
  key              the node's key (0600); absent where the key is kept elsewhere
  events.jsonl     what happened, with times           metrics.jsonl   one line a round, without times
  experience.jsonl own and foreign groups as text, for people
  checkpoints/     round_NNNNNN/: weights, optimiser, state
  journal/         round_NNNNNN.log: rounds since that checkpoint
  arrivals.log     what came from peers, for `waggle replay`, whose runs are in replays/
  model/           the best weights by the steering questions; transformers loads it
  inbox/           experience that came by file, until a round has taken it; absent before the first
  bootstrap        peers to come in through, one address a line
  address          where this node was reachable last
  ticket           an invitation that leads to this node, to be passed on
  paused           while it is there, no round is begun (`waggle pause`)
  usage            bytes sent and received today, where they are limited
  book.bin         the address book          log   what a node of a swarm printed since its last start
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from waggle import __version__
from waggle.core.codec import decode_stored, encode
from waggle.core.config import Config, dump, load
from waggle.core.errors import ConfigError, DecodeError, RunError
from waggle.core.files import disk_errors, write_atomic
from waggle.core.types import Charter

FORMAT = 3
"""1 had no configuration in the folder of a swarm, whose nodes lived in one process; 2 had no standings of authors."""
T = TypeVar("T", bound=msgspec.Struct)


class RunFolder:
    """Paths of a run. `create` makes one, `open` finds one; both take the lock until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.charter_file = path / "charter.bin"
        self.key_file = path / "key"
        self.events_file = path / "events.jsonl"
        self.metrics_file = path / "metrics.jsonl"
        self.experience_file = path / "experience.jsonl"
        self.checkpoints = path / "checkpoints"
        self.journals = path / "journal"
        self.arrivals_file = path / "arrivals.log"
        self.replays = path / "replays"
        self.model = path / "model"
        self.inbox = path / "inbox"
        self.bootstrap_file = path / "bootstrap"
        self.address_file = path / "address"
        self.ticket_file = path / "ticket"
        self.book_file = path / "book.bin"
        self.pause_file = path / "paused"
        self.usage_file = path / "usage"
        self.log_file = path / "log"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: Config, charter: Charter) -> "RunFolder":
        """Make the folder of a new run.

        Raises:
            RunError: it holds a run already, or cannot be written.
        """
        folder = cls(path)
        if (path / "run.json").exists():
            raise RunError(f"{path} already holds a run; continue it with --resume {path}, or choose another folder")
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        folder.lock()
        write_atomic(folder.config_file, dump(config).encode())
        write_atomic(folder.charter_file, encode(charter))
        describe(path, "node")
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Find an existing run and lock it.

        Raises:
            RunError: no run, another format version, or another process has it.
        """
        description = read_description(path)
        if description["kind"] != "node":
            raise RunError(f"{path} is the folder of a swarm; continue it with: waggle swarm --resume {path}")
        folder = cls(path)
        folder.lock()
        migrate(path)
        return folder

    def lock(self) -> None:
        """Take the folder for this process; it is given back when the process ends, however it ends."""
        with disk_errors(self.path / "lock"):
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunError(f"another process is using {self.path}; stop it first, or choose another folder") from error
        self._lock = descriptor
        os.utime(descriptor)  # since when it is held

    def config(self) -> Config:
        """The configuration that the run was started with.

        Raises:
            RunError: it is missing or damaged.
        """
        try:
            return load(self.config_file)
        except ConfigError as error:
            raise RunError(f"the run folder {self.path} is damaged ({error}); start a new run") from error

    def charter(self) -> Charter:
        """The swarm that the run belongs to."""
        return read_noun(Charter, self.charter_file)

    def newest_checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint, if there is one."""
        return max(
            self.checkpoints.glob("round_*"), key=lambda path: int(path.name.removeprefix("round_")), default=None
        )

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def describe(path: Path, kind: str) -> None:
    """Write `run.json`: what is in this folder, a `node` or a `swarm` of node folders."""
    text = json.dumps({"format": FORMAT, "kind": kind, "release": __version__})
    write_atomic(path / "run.json", text.encode())


def migrate(path: Path) -> None:
    """Bring a folder of an older format to this release's; a crash on the way does no harm."""
    description = read_description(path)
    if description["format"] < 2 and description["kind"] == "swarm":
        first = node_folders(path)[0]
        write_atomic(path / "config.toml", RunFolder(first).config_file.read_bytes())
        write_atomic(path / "charter.bin", RunFolder(first).charter_file.read_bytes())
    if description["format"] < FORMAT:
        describe(path, description["kind"])


def read_description(path: Path) -> dict[str, Any]:
    """What `run.json` says.

    Raises:
        RunError: not a run folder, or one of another format version.
    """
    try:
        description = json.loads((path / "run.json").read_text("utf-8"))
        version = description["format"]
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run folder (there is no run.json in it); `waggle swarm` makes one") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}/run.json cannot be read; the folder is damaged, start a new run") from error
    if version not in range(1, FORMAT + 1):
        raise RunError(
            f"{path} has run format {version} and this release of waggle reads up to {FORMAT}; "
            f"use the release that made it ({description.get('release', 'unknown')})"
        )
    return {"kind": "node", **description}


def node_folders(path: Path) -> list[Path]:
    """The node folders of a run: itself, or those inside a swarm folder.

    Raises:
        RunError: it is no run folder.
    """
    description = read_description(path)
    if description["kind"] == "node":
        return [path]
    found = [file.parent for file in path.glob("node-*/run.json") if file.parent.name[5:].isdecimal()]
    folders = sorted(found, key=lambda folder: int(folder.name[5:]))
    if not folders:
        raise RunError(f"{path} holds no nodes; the run was stopped before it began, start a new one")
    return folders


def is_locked(path: Path) -> bool:
    """Whether a process is using the run folder now."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_noun(kind: type[T], file: Path, max_bytes: int = 1 << 30) -> T:
    """Decode a file of canonical bytes, maybe of an earlier release.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        return decode_stored(kind, file.read_bytes(), max_bytes)
    except (OSError, DecodeError) as error:
        raise RunError(f"{file} is missing or damaged ({error}); start a new run") from error
