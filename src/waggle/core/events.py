"""What happened, as JSON lines: the product that views, tests and reports read.

Each line is one object with `at_s`, `event` and the event's own fields. Files rotate by size so that a
node may run for weeks; a torn last line, left by a crash, is cut off when the file is opened again.
`NoEvents` is the null object.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from waggle.core.clock import Clock
from waggle.core.errors import RunError
from waggle.core.files import append_line, disk_errors


class Events(Protocol):
    """Where events go."""

    def emit(self, event: str, **fields: Any) -> None:
        """Record one event."""
        ...


class NoEvents:
    """Events that are only counted. Example: `NoEvents().counts["refused"]`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def emit(self, event: str, **fields: Any) -> None:
        self.counts[event] += 1


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def json_line(record: dict[str, Any]) -> str:
    """One record as a line of strict JSON; bytes as hex, numbers that are not finite as null."""
    return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False) + "\n"


def cut_torn_line(file: Path) -> None:
    """Drop an unfinished last line."""
    if not file.exists():
        return
    with disk_errors(file), open(file, "r+b") as handle:
        end = handle.seek(0, 2)
        while end > 0:
            start = max(0, end - 65536)
            handle.seek(start)
            newline = handle.read(end - start).rfind(b"\n")
            if newline >= 0:
                handle.truncate(start + newline + 1)
                return
            end = start
        handle.truncate(0)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSONL file, its rotated predecessor first; unfinished lines are passed over."""
    for part in (file.with_suffix(file.suffix + ".1"), file):
        yield from _records(part)


def _records(part: Path, last_bytes: int = 1 << 62) -> Iterator[dict[str, Any]]:
    if not part.exists():
        return
    with open(part, "rb") as handle:
        handle.seek(max(0, handle.seek(0, 2) - last_bytes))
        for line in handle:
            if (record := _record(line)) is not None:
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


_HEAD_BYTES = 64
"""Enough of a file to tell it from the one that had its name before."""


class Tail:
    """What is added to a JSONL file while somebody writes it. Example: `tail = Tail(file); list(tail.new())`.

    The rotated predecessor is read once, at first. Lines that were added to a file just before it was rotated may be
    missed where nobody looked in between.

    Args:
        last_bytes: how much of what is there already is read at most, the newest of it.
    """

    def __init__(self, file: Path, last_bytes: int = 1 << 62) -> None:
        self._file, self._last_bytes = file, last_bytes
        self._place = 0
        self._head = b""
        self._started = False

    def new(self) -> Iterator[dict[str, Any]]:
        """The records of whole lines since the last call, read as they are taken."""
        if not self._started:
            self._started = True
            size_bytes = self._file.stat().st_size if self._file.exists() else 0
            if (left := self._last_bytes - size_bytes) > 0:
                yield from _records(self._file.with_suffix(self._file.suffix + ".1"), left)
            self._place = max(0, size_bytes - self._last_bytes)  # within a line, which is none then
        if not self._file.exists():
            return
        with open(self._file, "rb") as handle:
            head = handle.read(_HEAD_BYTES)
            if handle.seek(0, 2) < self._place or not head.startswith(self._head):
                self._place = 0  # a new file
            self._head = head
            handle.seek(self._place)
            for line in handle:
                if not line.endswith(b"\n"):
                    break
                self._place += len(line)
                if (record := _record(line)) is not None:
                    yield record


class EventLog:
    """Events in a file. At `max_bytes` it becomes `NAME.1` and a new one starts, so two files at most.

    What a full disk does not take is lost, and counted in `num_lost`: nothing stops for the lack of a record.
    """

    def __init__(self, file: Path, clock: Clock, max_bytes: int = 32 << 20) -> None:
        self._file, self._clock, self._max_bytes = file, clock, max_bytes
        self.num_lost = 0
        cut_torn_line(file)

    def emit(self, event: str, **fields: Any) -> None:
        at_s = round(self._clock.now_s(), 3)
        try:
            if self.num_lost:
                self.write({"at_s": at_s, "event": "events-lost", "count": self.num_lost})
                self.num_lost = 0
            self.write({"at_s": at_s, "event": event, **fields})
        except RunError:
            self.num_lost += 1

    def write(self, record: dict[str, Any]) -> None:
        """Append one record as it is.

        Raises:
            RunError: the disk refuses.
        """
        append_line(self._file, json_line(record).encode(), self._max_bytes)
