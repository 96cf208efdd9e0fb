"""Experience by file, for peers that no network reaches: what a node has offered, and the inbox of another.

A parcel is one compressed file with the charter's digest and the canonical bytes of experiences, seals included. It
vouches for nothing: what is found in an inbox is screened and graded like what came by network, in the node's next
round, and counts as refused for the same reasons. Nodes may run meanwhile on both sides; the parcel goes once the round
that took it is final, so a crash between only finds duplicates. Left out: peers' experience in the pool, whose seals
are not kept there.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from waggle.core.codec import decode, digest_bytes, encode, pack, unpack
from waggle.core.errors import DecodeError, RunError
from waggle.core.files import disk_errors, write_atomic
from waggle.core.sealing import charter_digest
from waggle.core.types import Digest, Experience, Noun
from waggle.node.journal import read_records
from waggle.node.runfolder import RunFolder, read_noun
from waggle.node.state import MAX_RECORD_BYTES, Record, Snapshot
from waggle.swarm.admission import SEAL_MAX_BYTES

MAX_BYTES = 64 << 20
"""The largest parcel, before compression."""
MAX_ITEMS = 4096
_SUFFIX = ".parcel"
_ITEM_BYTES = (1 << 20) + SEAL_MAX_BYTES


class Parcel(Noun, frozen=True):
    """Experiences of one swarm, each as its canonical bytes. Example: `Parcel(charter_digest, (b"..",))`."""

    charter: Digest
    experiences: Annotated[tuple[Annotated[bytes, Meta(max_length=_ITEM_BYTES)], ...], Meta(max_length=MAX_ITEMS)]


def offered(folder: RunFolder) -> list[Experience]:
    """What the node has on offer: at its newest checkpoint and in the rounds since, oldest first.

    Raises:
        RunError: the run has not begun, or changed at this very moment.
    """
    checkpoints = sorted(folder.checkpoints.glob("round_*"))
    if not checkpoints:
        raise RunError(f"{folder.path} has not played a round yet; try again when it has")
    window = read_noun(Snapshot, checkpoints[-1] / "state.bin").window
    found = {sealed.round: sealed.experiences for sealed in window}
    data, _ = read_records(folder.journals / f"{checkpoints[-1].name}.log")
    for one in data:
        record = decode(Record, one, MAX_RECORD_BYTES)
        found[record.state.round] = record.sealed
    return [experience for number in sorted(found) for experience in found[number]]


def export(folders: list[RunFolder], file: Path) -> int:
    """Write what these nodes of one swarm have on offer, the newest where there is too much. Returns how many.

    Raises:
        RunError: there is nothing, or the file exists or cannot be written.
    """
    if file.exists():
        raise RunError(f"{file} exists already; choose another name for the parcel")
    experiences = [experience for folder in folders for experience in offered(folder)]
    experiences.sort(key=lambda experience: -experience.seal.created_ms)
    chosen: list[bytes] = []
    room_bytes = MAX_BYTES - 4096
    for data in map(encode, experiences[:MAX_ITEMS]):
        room_bytes -= len(data) + 5
        if room_bytes >= 0:
            chosen.append(data)
    if not chosen:
        raise RunError(f"{folders[0].path} has offered nothing yet; a parcel needs groups with a learning signal")
    parcel = Parcel(charter_digest(folders[0].charter()), tuple(chosen))
    write_atomic(file, pack(encode(parcel)))
    return len(chosen)


def read_parcel(file: Path) -> Parcel:
    """The parcel in a file.

    Raises:
        DecodeError: it is none.
        OSError: it cannot be read.
    """
    if file.stat().st_size > MAX_BYTES:
        raise DecodeError("too-large", f"a parcel has at most {MAX_BYTES} bytes")
    return decode(Parcel, unpack(file.read_bytes(), MAX_BYTES), MAX_BYTES)


def parcel_for(folders: list[RunFolder], file: Path) -> Parcel:
    """The parcel in a file that is meant for these nodes.

    Raises:
        RunError: it is no parcel, or of another swarm.
    """
    charter = charter_digest(folders[0].charter())
    try:
        parcel = read_parcel(file)
    except DecodeError as error:
        raise RunError(f"{file} is not a parcel of experience ({error}); `waggle pool export` makes one") from error
    if parcel.charter != charter:
        raise RunError(
            f"{file} holds experience of the swarm {parcel.charter.hex()[:12]} and the run is of {charter.hex()[:12]}; "
            "only nodes that joined by one ticket can use each other's"
        )
    return parcel


def older_than(parcel: Parcel, limit_s: float) -> int:
    """How many of the experiences were made before this time, in seconds since 1970; those that can be read."""
    old = 0
    for data in parcel.experiences:
        try:
            old += decode(Experience, data, len(data)).seal.created_ms < 1000 * limit_s
        except DecodeError:
            continue  # its refusal is the node's to count
    return old


class Inbox:
    """Parcels that wait for a node. Example: `inbox.put(parcel)` here, `inbox.take()` in its next round."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._taken: Path | None = None

    def put(self, parcel: Parcel) -> None:
        """Leave a parcel. One that lies there already is not doubled."""
        data = pack(encode(parcel))
        with disk_errors(self._folder.inbox):
            self._folder.inbox.mkdir(exist_ok=True)
        write_atomic(self._folder.inbox / f"{digest_bytes('Parcel', data).hex()[:16]}{_SUFFIX}", data)

    def take(self) -> Parcel | None:
        """A waiting parcel, if there is one; it stays until `clear`.

        Raises:
            DecodeError: it is damaged; `clear` takes it away all the same.
        """
        with disk_errors(self._folder.inbox):
            self._taken = min(self._folder.inbox.glob(f"*{_SUFFIX}"), default=None)
            return read_parcel(self._taken) if self._taken else None

    def clear(self) -> None:
        """Take away the parcel that was taken last."""
        if self._taken is not None:
            with disk_errors(self._taken):
                self._taken.unlink(missing_ok=True)
            self._taken = None
