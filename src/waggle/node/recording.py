"""What came from peers, round after round, for `waggle replay`: the beginning of a run, as far as there is room for it.

An append-only file of compressed arrivals beside the journal, which stays the one place where a round becomes final: a
round is recorded after its commit, and one that a crash kept from it is added from the journal when the node resumes.
The record begins with the first round and has no gaps; where it has reached its size, or misses a round, it has ended.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from waggle.core.codec import decode_stored, encode, pack, unpack
from waggle.core.errors import DecodeError, RunError
from waggle.node.journal import Journal, read_records
from waggle.node.state import MAX_RECORD_BYTES, Arrival, Record


class Recording:
    """The file of a node. Example: `Recording(folder.arrivals_file, 64_000_000).complete(records)`.

    Args:
        max_bytes: the largest that it becomes; 0: nothing is recorded.
    """

    def __init__(self, file: Path, max_bytes: int) -> None:
        self._file, self._max_bytes, self._last = file, max_bytes, 0
        self._journal: Journal | None = None

    def add(self, arrival: Arrival) -> None:
        """Record a round, where it is the next one and there is room.

        Raises:
            RunError: the disk refuses.
        """
        if not self._max_bytes:
            return
        journal = self._journal or self._open()
        if arrival.round != self._last + 1:
            return
        data = pack(encode(arrival))
        if journal.size_bytes + len(data) > self._max_bytes:
            return
        journal.append(data)
        self._last = arrival.round

    def _open(self) -> Journal:
        journal = self._journal = Journal(self._file)
        if journal.records:
            with suppress(RunError):  # damaged, as `arrivals` will say: it has ended
                self._last = -1
                self._last = _decoded(self._file, journal.records[-1]).round
        journal.records.clear()  # what a node of weeks would carry along
        return journal

    def complete(self, records: Iterable[Record]) -> None:
        """Add the committed rounds that a crash kept from the file."""
        for record in records:
            self.add(record.arrival)

    def close(self) -> None:
        """Give the file back."""
        if self._journal is not None:
            self._journal.close()


def arrivals(file: Path) -> list[Arrival]:
    """The recorded rounds, from the first on; the node may be running.

    Raises:
        RunError: the file is damaged.
    """
    return [_decoded(file, record) for record in read_records(file)[0]]


def _decoded(file: Path, record: bytes) -> Arrival:
    try:
        return decode_stored(Arrival, unpack(record, MAX_RECORD_BYTES), MAX_RECORD_BYTES)
    except DecodeError as error:
        raise RunError(f"{file} is damaged ({error}); without it the run goes on, but cannot be replayed") from error
