"""`waggle join`: how one node comes into being, from a ticket, beside a local swarm, or as a swarm of one."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from waggle.core.blob import DiskBlobs
from waggle.core.clock import SystemClock
from waggle.core.config import Config
from waggle.core.errors import ConfigError, IdentityError, NetworkError, RunError, TaskError
from waggle.core.files import disk_errors
from waggle.core.keys import Key, peer_name
from waggle.core.sealing import charter_digest
from waggle.core.types import Charter, Peer
from waggle.net.blobs import fetch
from waggle.net.pace import Pace
from waggle.net.transport import read_address
from waggle.node import build, place
from waggle.node.person import Telling
from waggle.node.runfolder import RunFolder, node_folders
from waggle.node.session import open_node, play_node, prepare
from waggle.swarm.charter import PREFIX, is_member, read_ticket
from waggle.tasks.files import MAX_BYTES, missing_files

FETCH_S = 3600.0
"""How long a task file may take; the pieces that came are kept."""
IN_USE = Path(".waggle") / "in-use"


@dataclass(frozen=True)
class Invitation:
    """Into which swarm a node comes, and through whom."""

    charter: Charter
    peers: list[Peer]


def invitation(ticket: str | None, into: Path | None, again: bool = False) -> Invitation | None:
    """What a ticket or a local swarm's folder says; None for a swarm of one.

    Args:
        ticket: its text, or a file that holds it.
        again: whether the node has joined before, so that an old ticket does.

    Raises:
        ConfigError: a ticket that is none, or has expired.
        RunError: no such folder, or nobody there is online yet.
    """
    if into:
        folders = [RunFolder(folder) for folder in node_folders(into)]
        reachable = [place.address_of(folder) for folder in folders]
        peers = [peer for peer in reachable if peer]
        if not peers:
            raise RunError(f"no node of {into} is online yet; try again in a moment")
        return Invitation(folders[0].charter(), peers)
    if ticket is None:
        return None
    if not ticket.startswith(PREFIX):
        ticket = _from_file(Path(ticket))
    read = read_ticket(ticket, 0 if again else int(SystemClock().now_s() * 1000))
    return Invitation(read.charter, [read_address(address) for address in read.addresses])


def _from_file(file: Path) -> str:
    with suppress(OSError):
        if file.is_file():
            return file.read_text("utf-8", "replace")
    return str(file)


def begin(console: Console, path: Path, config: Config, key_file: Path, invited: Invitation | None) -> RunFolder:
    """The folder of a new node, locked.

    Raises:
        WaggleError: whatever keeps it from taking part, in one sentence.
    """
    key = Key.load_or_create(key_file)
    with alone(key.id, tied=False):
        pass  # said before anything is written
    files = path / build.FILES
    if invited:
        _require_member(invited.charter, key.id)
        build.bring_file(config, invited.charter, files)
    charter = invited.charter if invited else build.found_charter(config, key, "swarm of one", files)
    missing = missing_files(charter.families, files)
    if missing and not (invited and invited.peers):
        raise TaskError(
            "questions of this swarm come from a file, and the ticket names no peer that could give it; "
            "get it from the swarm's founder and name it with --set tasks.file=FILE"
        )
    gives = config.model.gives
    fitted = build.only_gives(config) if gives else build.fitted(config, build.plan_memory(config, 1))
    peers = invited.peers if invited else []
    if missing:
        place.keep_bootstrap(RunFolder(path), peers)
        asyncio.run(_fetch_files(console, RunFolder(path), fitted, key, charter, missing))
        shared = fitted.tasks.model_copy(update={"file": str(DiskBlobs(files).path(missing[0])), "share_file": True})
        fitted = fitted.model_copy(update={"tasks": shared})
    return prepare(path, fitted, key, charter, peers)


async def _fetch_files(
    console: Console, folder: RunFolder, config: Config, key: Key, charter: Charter, missing: Sequence[bytes]
) -> None:
    """Bring the swarm's task files from its peers.

    Raises:
        TaskError: no peer gives them.
    """
    clock, ways = SystemClock(), place.bootstrap_of(folder)
    console.print("fetching the swarm's task file from its peers ...")
    transport = place.transport_for(folder, key, config, charter, Pace(clock, 1000 * config.net.upload_kb_s))
    try:
        await transport.start()
        await transport.join(ways)
        peers = list(dict.fromkeys([*(peer.id for peer in ways), *transport.peers()]))
        for blob in missing:
            store = DiskBlobs(folder.path / build.FILES)
            await fetch(transport, peers, blob, store, clock, timeout_s=FETCH_S, max_bytes=MAX_BYTES)
    except NetworkError as error:
        raise TaskError(
            f"the swarm asks questions of a file, and no peer gives it ({error}); its founder may share it with "
            "tasks.share_file=true, or get it from him and name it with --set tasks.file=FILE"
        ) from error
    finally:
        await transport.close()


def _require_member(charter: Charter, peer: bytes) -> None:
    if not is_member(charter, peer):
        raise IdentityError(
            f"the swarm {charter.name!r} is for members only and {peer.hex()} is not one; "
            "send this id to its founder, or use another --key"
        )


def resume(console: Console, path: Path, overrides: Callable[[Config], Config], quiet: bool, tied: bool) -> None:
    """Continue a node.

    Raises:
        WaggleError: nothing to resume, in use, of another version, or damaged.
    """
    play(console, RunFolder.open(path), quiet, tied, overrides)


def go_on(console: Console, path: Path, config: Config, invited: Invitation | None, quiet: bool, tied: bool) -> None:
    """Continue the node in a folder, with the [run] and [net] settings and the peers that are given now.

    Raises:
        WaggleError: see `resume`; or the folder holds a node of another swarm.
    """
    folder = RunFolder.open(path)
    known = folder.charter()
    if invited and charter_digest(invited.charter) != charter_digest(known):
        folder.close()
        raise ConfigError(
            f"the ticket is of the swarm {invited.charter.name!r} and {path} holds a node of another one, "
            f"{known.name!r}; choose another folder with --run"
        )
    if invited and invited.peers:
        place.keep_bootstrap(folder, invited.peers)

    for line in _without_effect(config, folder.config()):
        console.print(f"{path} keeps what it was started with: {line}", highlight=False)

    def with_settings(kept: Config) -> Config:
        run = config.run.model_copy(update={"seed": kept.run.seed})
        return kept.model_copy(update={"run": run, "net": config.net})

    play(console, folder, quiet, tied, with_settings)


def play(
    console: Console, folder: RunFolder, quiet: bool, tied: bool, overrides: Callable[[Config], Config] = lambda c: c
) -> None:
    """Play the node of a locked folder to its end.

    Raises:
        WaggleError: see `open_node`; or its key is in use.
    """
    with alone(Key.load(folder.key_file).id, tied):
        play_node(open_node(console, folder, files_of(folder.path), overrides), quiet, tied)


def answer(console: Console, folder: RunFolder) -> None:
    """Let a person play the node of a locked folder, until he leaves.

    Raises:
        Left: he has.
        WaggleError: see `open_node`; or its key is in use.
    """

    def say(line: str) -> None:
        console.print(line, highlight=False)

    with alone(Key.load(folder.key_file).id, tied=False):
        session = open_node(console, folder, files_of(folder.path))
        session.node.grader = Telling(session.node.grader, say)
        play_node(session, quiet=True)


def files_of(path: Path) -> Path:
    """The folder of a node's task files: its own, or its local swarm's."""
    own, common = path / build.FILES, path.parent / build.FILES
    return common if common.exists() and not own.exists() else own


def _without_effect(given: Config, kept: Config) -> Iterator[str]:
    """What was set and cannot be changed any more."""
    for section in given.model_fields_set - {"run", "net"}:
        asked, old = getattr(given, section), getattr(kept, section)
        for field in sorted(asked.model_fields_set):
            if getattr(asked, field) != getattr(old, field):
                yield f"{section}.{field} stays {getattr(old, field)!r}"


@contextmanager
def alone(peer: bytes, tied: bool) -> Iterator[None]:
    """Keep a key to one node of this user's on this machine; given back when the process ends, however it ends.

    Args:
        tied: whether the node is one of a local swarm, whose keys mean something on its own network alone.

    Raises:
        IdentityError: another node has it.
    """
    if tied:
        yield
        return
    folder = Path.home() / IN_USE
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / peer.hex()[:32], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise IdentityError(
            f"the key of {peer_name(peer)} is in use by another node on this machine; "
            "stop that one, or give this one a key of its own with --key"
        ) from error
    finally:
        os.close(descriptor)
