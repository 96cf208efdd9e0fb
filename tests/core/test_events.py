"""Events as JSON lines: strict, rotated, and readable after a crash."""

import json
from pathlib import Path

import pytest

from waggle.core.clock import FakeClock
from waggle.core.errors import RunError
from waggle.core.events import EventLog, NoEvents, Tail, cut_torn_line, json_line, read_lines


def test_a_line_is_time_event_and_fields(tmp_path: Path) -> None:
    clock = FakeClock(100.1234)
    log = EventLog(tmp_path / "events.jsonl", clock)
    log.emit("refused", reason="stale", peer=b"\x01\xff", age_s=2.5)
    clock.advance(1)
    log.emit("alone")
    assert list(read_lines(tmp_path / "events.jsonl")) == [
        {"at_s": 100.123, "event": "refused", "reason": "stale", "peer": "01ff", "age_s": 2.5},
        {"at_s": 101.123, "event": "alone"},
    ]


def test_lines_are_strict_json() -> None:
    line = json_line({"nan": float("nan"), "deep": {"x": [float("inf"), (1, b"\0")], 3: None}, "text": 'a\n"b'})
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert json.loads(line, parse_constant=pytest.fail) == {
        "nan": None,
        "deep": {"x": [None, [1, "00"]], "3": None},
        "text": 'a\n"b',
    }


def test_files_rotate_and_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    log = EventLog(file, FakeClock(), max_bytes=1000)
    for number in range(200):
        log.emit("tick", number=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    assert all(path.stat().st_size < 1100 for path in tmp_path.iterdir())
    numbers = [record["number"] for record in read_lines(file)]
    assert numbers == list(range(numbers[0], 200))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'{"a":1}\n', b'{"a":1}\n'),
        (b'{"a":1}\n{"b":', b'{"a":1}\n'),
        (b'{"torn', b""),
        (b"x\n" + b"y" * 200_000, b"x\n"),
        (b"y" * 200_000, b""),
        (b"x" * 65_535 + b"\n" + b"y" * 65_536, b"x" * 65_535 + b"\n"),
    ],
)
def test_a_torn_line_is_cut(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(before)
    cut_torn_line(file)
    assert file.read_bytes() == after


def test_a_log_goes_on_after_a_crash(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    EventLog(file, FakeClock()).emit("one")
    with open(file, "ab") as handle:
        handle.write(b'{"event":"tw')
    EventLog(file, FakeClock()).emit("three")
    assert [record["event"] for record in read_lines(file)] == ["one", "three"]


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"a":1}\nnot json\n[1]\n\xff\xfe\n\n{"b":2}\n{"c"')
    assert list(read_lines(file)) == [{"a": 1}, {"b": 2}]
    assert list(read_lines(tmp_path / "none.jsonl")) == []


def test_what_cannot_be_written_is_counted_and_told_later(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    log = EventLog(folder / "events.jsonl", FakeClock())
    log.emit("x")
    log.emit("y")
    assert log.num_lost == 2
    folder.mkdir()
    log.emit("z")
    told = list(read_lines(folder / "events.jsonl"))
    assert [(record["event"], record.get("count")) for record in told] == [("events-lost", 2), ("z", None)]
    with pytest.raises(RunError, match=r"cannot write .*events\.jsonl: No such file"):
        EventLog(tmp_path / "no" / "events.jsonl", FakeClock()).write({})


def test_a_tail_tells_what_is_added_once_and_survives_rotation(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    log = EventLog(file, FakeClock(), max_bytes=200)
    tail = Tail(file)
    assert list(tail.new()) == []
    log.emit("a")
    log.emit("b")
    assert [record["event"] for record in tail.new()] == ["a", "b"]
    with open(file, "a") as torn:
        torn.write('{"event":"c"')
    assert list(tail.new()) == []
    with open(file, "a") as torn:
        torn.write("}\n[1]\n")
    assert [record["event"] for record in tail.new()] == ["c"]
    for _ in range(5):
        log.emit("d", text="x" * 60)
    assert [record["event"] for record in tail.new()][-1] == "d"
    assert list(tail.new()) == []
    assert [record["event"] for record in Tail(file).new()][-1] == "d"  # the rotated file comes first


def test_no_events_are_counted() -> None:
    events = NoEvents()
    events.emit("refused", reason="stale")
    events.emit("refused")
    assert events.counts == {"refused": 2}


def test_of_a_long_file_only_the_newest_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    lines = [json_line({"event": str(number)}) for number in range(100)]
    file.write_text("".join(lines[50:]))
    file.with_suffix(".jsonl.1").write_text("".join(lines[:50]))
    assert [record["event"] for record in Tail(file).new()] == [str(number) for number in range(100)]
    few = Tail(file, last_bytes=10 * len(lines[99]) + 5)
    assert [record["event"] for record in few.new()] == [str(number) for number in range(90, 100)]
    more = Tail(file, last_bytes=60 * len(lines[99]) + 5)
    assert [record["event"] for record in more.new()] == [str(number) for number in range(40, 100)]
    with open(file, "a") as handle:
        handle.write(json_line({"event": "new"}))
    assert [record["event"] for record in few.new()] == ["new"]
