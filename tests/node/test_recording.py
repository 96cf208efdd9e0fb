"""What came in is written down: in order, as far as there is room, whole after a crash."""

from pathlib import Path

import pytest

from waggle.core.errors import RunError
from waggle.node.journal import Journal
from waggle.node.recording import Recording, arrivals
from waggle.node.state import Arrival, Deed, Record, State

EVE = b"e" * 32


def arrival(number: int, deeds: int = 1) -> Arrival:
    return Arrival(number, (), tuple(Deed(EVE, f"reason-{number}-{i}") for i in range(deeds)), (EVE,))


def record(number: int) -> Record:
    was = arrival(number)
    return Record(State(b"l" * 32, number), b"", (), (), (), (), "", was.deeds, was.took)


def test_rounds_come_back_in_order_also_after_a_restart(tmp_path: Path) -> None:
    for numbers in ((1, 2), (3, 4)):
        recording = Recording(tmp_path / "arrivals.log", 10_000)
        for number in numbers:
            recording.add(arrival(number))
        recording.close()
    assert arrivals(tmp_path / "arrivals.log") == [arrival(number) for number in (1, 2, 3, 4)]


def test_a_missing_round_ends_the_record_and_a_known_one_is_not_doubled(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "arrivals.log", 10_000)
    for number in (1, 1, 3, 4):
        recording.add(arrival(number))
    recording.close()
    assert [one.round for one in arrivals(tmp_path / "arrivals.log")] == [1]


def test_the_rounds_that_a_crash_kept_from_it_are_added_from_the_journal(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "arrivals.log", 10_000)
    recording.add(arrival(1))
    recording.close()
    again = Recording(tmp_path / "arrivals.log", 10_000)
    again.complete([record(1), record(2), record(3)])
    again.close()
    assert arrivals(tmp_path / "arrivals.log") == [arrival(number) for number in (1, 2, 3)]


def test_it_ends_at_its_size_with_the_beginning_of_the_run(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "arrivals.log", 2000)
    for number in range(1, 200):
        recording.add(arrival(number, deeds=number))
    recording.close()
    kept = [one.round for one in arrivals(tmp_path / "arrivals.log")]
    assert kept == list(range(1, len(kept) + 1))
    assert 1 < len(kept) < 100
    assert 1000 < (tmp_path / "arrivals.log").stat().st_size <= 2000


def test_without_room_or_rounds_there_is_no_file(tmp_path: Path) -> None:
    nothing = Recording(tmp_path / "arrivals.log", 0)
    nothing.add(arrival(1))
    nothing.close()
    Recording(tmp_path / "arrivals.log", 100).close()
    assert not (tmp_path / "arrivals.log").exists()
    assert arrivals(tmp_path / "arrivals.log") == []


def test_a_damaged_one_is_said_and_a_node_goes_on_without_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "arrivals.log")
    journal.append(b"not an arrival")
    journal.close()
    with pytest.raises(RunError, match="damaged"):
        arrivals(tmp_path / "arrivals.log")
    before = (tmp_path / "arrivals.log").read_bytes()
    recording = Recording(tmp_path / "arrivals.log", 10_000)
    for number in (1, 2):
        recording.add(arrival(number))
    recording.close()
    assert (tmp_path / "arrivals.log").read_bytes() == before
