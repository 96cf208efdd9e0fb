"""Experience by file, for peers that no network reaches: what a node has offered, and the inbox of another.

A parcel is one compressed file with the charter's digest and the canonical bytes of experiences, seals included. It
vouches for nothing: what is found in an inbox is screened and graded like what came by network, as much at a time as
a round may pull, and counts as refused for the same reasons. Nodes may run meanwhile on both sides; what was taken goes
once its round is final, so a crash between only finds duplicates. Left out: peers' experience in the pool, whose seals
are not kept there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from waggle.core.codec import decode, decode_stored, digest_bytes, encode, pack, unpack
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
_TRIES = 8
_ITEM_BYTES = (1 << 20) + SEAL_MAX_BYTES


class Parcel(Noun, frozen=True):
    """Experiences of one swarm, each as its canonical bytes. Example: `Parcel(charter_digest, (b"..",))`."""

    charter: Digest
    experiences: Annotated[tuple[Annotated[bytes, Meta(max_length=_ITEM_BYTES)], ...], Meta(max_length=MAX_ITEMS)]


def offered(folder: RunFolder) -> list[Experience]:
    """What the node has on offer: at its newest checkpoint and in the rounds since, oldest first.

    Raises:
        RunError: the run has not begun, is damaged, or changes faster than it can be read.
    """
    for _ in range(_TRIES):
        newest = folder.newest_checkpoint()
        if newest is None:
            raise RunError(f"{folder.path} has not played a round yet; try again when it has")
        failure: Exception | None = None
        try:
            found = _rounds(folder, newest)
        except (RunError, OSError) as error:
            failure = error
        if folder.newest_checkpoint() != newest:
            continue  # the node has stored another one meanwhile and cleared this one away
        if isinstance(failure, RunError):
            raise failure
        if failure is None:
            kept = [number for number in sorted(found) if found[number]][-folder.config().share.max_lag :]
            return [experience for number in kept for experience in found[number]]
    raise RunError(f"{folder.path} changes faster than it can be read; try again")


def _rounds(folder: RunFolder, checkpoint: Path) -> dict[int, tuple[Experience, ...]]:
    window = read_noun(Snapshot, checkpoint / "state.bin").window
    found = {sealed.round: sealed.experiences for sealed in window}
    journal = folder.journals / f"{checkpoint.name}.log"
    for data in read_records(journal)[0]:
        try:
            record = decode_stored(Record, data, MAX_RECORD_BYTES)
        except DecodeError as error:
            raise RunError(f"{journal} was written by another release of waggle ({error}); use that one") from error
        found[record.state.round] = record.sealed
    return found


def export(folders: list[RunFolder], file: Path) -> int:
    """Write what these nodes of one swarm have on offer, the newest where there is too much. Returns how many.

    Raises:
        RunError: there is nothing, or the file exists or cannot be written.
    """
    if file.exists():
        raise RunError(f"{file} exists already; choose another name for the parcel")
    charter = folders[0].charter()
    experiences = [experience for folder in folders for experience in offered(folder)]
    experiences.sort(key=lambda experience: -experience.seal.created_ms)
    most_bytes = min(_ITEM_BYTES, charter.admission.max_body_bytes + SEAL_MAX_BYTES)
    fit = [data for data in map(encode, experiences) if len(data) <= most_bytes]  # nobody would take the others
    chosen = tuple(_first(fit, MAX_ITEMS, MAX_BYTES - 4096))
    if not chosen:
        raise RunError(f"{folders[0].path} has offered nothing yet; `share.publish` says what a node offers")
    write_atomic(file, pack(encode(Parcel(charter_digest(charter), chosen))))
    return len(chosen)


def _first(items: Sequence[bytes], num: int, max_bytes: int) -> Sequence[bytes]:
    """The first items, at most so many and of so many bytes together."""
    size_bytes = 0
    for count, data in enumerate(items[:num]):
        size_bytes += len(data) + 5
        if size_bytes > max_bytes:
            return items[:count]
    return items[:num]


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
        RunError: it cannot be read, is no parcel, or is of another swarm.
    """
    charter = charter_digest(folders[0].charter())
    try:
        parcel = read_parcel(file)
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror or error}; check the path and its owner") from error
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
    """Parcels that wait for a node. Example: `inbox.put(parcel)` here, `inbox.take(8, 1 << 20)` in its next round."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._taken: Path | None = None
        self._rest: Parcel | None = None
        self._stuck: set[Path] = set()
        """What could be taken but not be taken away; it is left alone."""

    def put(self, parcel: Parcel) -> None:
        """Leave a parcel. One that lies there already is not doubled."""
        data = pack(encode(parcel))
        with disk_errors(self._folder.inbox):
            self._folder.inbox.mkdir(exist_ok=True)
        write_atomic(self._folder.inbox / f"{digest_bytes('Parcel', data).hex()[:16]}{_SUFFIX}", data)

    def take(self, num: int, max_bytes: int) -> Parcel | None:
        """The first experiences of a waiting parcel, if there is one; they stay until `clear`.

        Raises:
            DecodeError: it is damaged or cannot be read; `clear` takes it away all the same.
        """
        self._taken, self._rest = None, None
        if num < 1:
            return None
        waiting = (path for path in self._folder.inbox.glob(f"*{_SUFFIX}") if path.is_file())
        self._taken = min((path for path in waiting if path not in self._stuck), default=None)
        if self._taken is None:
            return None
        try:
            parcel = read_parcel(self._taken)
        except OSError as error:
            raise DecodeError("framing", f"{self._taken} cannot be read: {error.strerror or error}") from error
        now = tuple(_first(parcel.experiences, num, max_bytes)) or parcel.experiences[:1]
        if rest := parcel.experiences[len(now) :]:
            self._rest = Parcel(parcel.charter, rest)
        return Parcel(parcel.charter, now)

    def clear(self) -> None:
        """Take away what was taken last; the rest of its parcel waits on."""
        if self._taken is None:
            return
        try:
            if self._rest:
                self.put(self._rest)
            self._taken.unlink(missing_ok=True)
        except (OSError, RunError):  # e.g. of another owner: no reason to end a run
            self._stuck.add(self._taken)
        self._taken = None
