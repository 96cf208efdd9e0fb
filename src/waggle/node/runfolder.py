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
  model/           the best weights by the steering questions; transformers loads it
  inbox/           experience that came by file, until a round has taken it; absent before the first
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from waggle import __version__
from waggle.core.codec import decode, encode
from waggle.core.config import Config, dump, load
from waggle.core.errors import ConfigError, DecodeError, RunError
from waggle.core.files import disk_errors, write_atomic
from waggle.core.types import Charter

FORMAT = 1
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
        self.model = path / "model"
        self.inbox = path / "inbox"
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
        write_atomic(path / "run.json", json.dumps({"format": FORMAT, "kind": "node", "release": __version__}).encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Find an existing run and lock it.

        Raises:
            RunError: no run, another format version, or another process has it.
        """
        read_description(path)
        folder = cls(path)
        folder.lock()
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
    if version != FORMAT:
        raise RunError(
            f"{path} has run format {version} and this release of waggle reads {FORMAT}; "
            f"use the release that made it ({description.get('release', 'unknown')})"
        )
    return dict(description)


def node_folders(path: Path) -> list[Path]:
    """The node folders of a run: itself, or those inside a swarm folder.

    Raises:
        RunError: it is no run folder.
    """
    description = read_description(path)
    if description.get("kind") == "node":
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
    """Decode a file of canonical bytes.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        return decode(kind, file.read_bytes(), max_bytes)
    except (OSError, DecodeError) as error:
        raise RunError(f"{file} is missing or damaged ({error}); start a new run") from error
