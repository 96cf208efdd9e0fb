"""The journal: what was appended is there after any crash, what was not is not, and a full disk breaks nothing."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from waggle.core.errors import RunError
from waggle.node.journal import Journal

RECORDS = [b"first", b"", bytes(range(256)) * 3, b"last record"]


def written(file: Path, records: list[bytes] = RECORDS) -> bytes:
    """The bytes of a journal with these records."""
    journal = Journal(file)
    for record in records:
        journal.append(record)
    journal.close()
    return file.read_bytes()


def reopened(file: Path) -> list[bytes]:
    journal = Journal(file)
    journal.close()
    return journal.records


def test_records_come_back_in_order(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "round.log"
    written(file, RECORDS[:2])
    assert reopened(file) == RECORDS[:2]
    written(file, RECORDS[2:])
    assert reopened(file) == RECORDS


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    assert reopened(tmp_path / "round.log") == []
    assert (tmp_path / "round.log").stat().st_size == 0


def test_a_torn_tail_of_any_length_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "round.log"
    earlier = len(written(tmp_path / "earlier.log", RECORDS[:-1]))
    whole = written(file)
    for length in range(earlier, len(whole)):
        file.write_bytes(whole[:length])
        assert reopened(file) == RECORDS[:-1]
        assert file.stat().st_size == earlier
        written(file, [b"next"])
        assert reopened(file) == [*RECORDS[:-1], b"next"]


def test_any_damaged_byte_ends_the_readable_part_before_its_record(tmp_path: Path) -> None:
    file = tmp_path / "round.log"
    whole = written(file, [b"one", b"two", b"three"])
    ends = [len(written(tmp_path / f"{n}.log", [b"one", b"two", b"three"][:n])) for n in range(4)]
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        file.write_bytes(damaged)
        intact = sum(end <= position for end in ends) - 1
        assert reopened(file) == [b"one", b"two", b"three"][:intact]
        assert file.stat().st_size == ends[intact]


def full_after(room: int, raising: bool) -> Any:
    """An `os.write` for a disk with `room` bytes left: a short write, or an error with nothing written."""
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if raising:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:room])

    return limited


@pytest.mark.parametrize(
    ("room", "raising"), [(0, True), (0, False), (1, False), (11, False), (12, False), (20, False)]
)
def test_a_full_disk_leaves_earlier_records_and_later_appends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, raising: bool
) -> None:
    file = tmp_path / "round.log"
    journal = Journal(file)
    journal.append(b"before")
    with monkeypatch.context() as full:
        full.setattr(os, "write", full_after(room, raising))
        with pytest.raises(RunError, match=r"cannot write .*round\.log: No space left on device; free some space"):
            journal.append(b"a record of twenty-one")
    assert reopened(file) == [b"before"]
    journal.append(b"after")
    journal.close()
    assert reopened(file) == [b"before", b"after"]


def test_a_record_that_could_not_be_made_durable_is_not_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path / "round.log")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        with pytest.raises(RunError, match="Input/output error"):
            journal.append(b"lost")
    journal.close()
    assert reopened(tmp_path / "round.log") == []


def test_a_journal_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "round.log").mkdir()
    with pytest.raises(RunError, match=r"round\.log: Is a directory"):
        Journal(tmp_path / "round.log")
