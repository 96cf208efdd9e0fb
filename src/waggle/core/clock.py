"""Time as an argument. Nothing in the library reads the wall clock except `SystemClock`."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Where a node takes its time from."""

    def now_s(self) -> float:
        """Seconds since the epoch. May jump where somebody sets the machine's clock."""
        ...

    def passed_s(self) -> float:
        """Seconds that only ever grow, from some moment on: for how long something took or may take."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed on this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.time()

    def passed_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to. Example: `clock.advance(60)` wakes every sleeper due by then."""

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def now_s(self) -> float:
        return self._now_s

    def passed_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = (self._now_s + seconds, next(self._order), asyncio.Event())
        heapq.heappush(self._sleepers, sleeper)
        try:
            await sleeper[2].wait()
        except asyncio.CancelledError:
            if not sleeper[2].is_set():
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)
            raise

    def advance(self, seconds: float) -> None:
        """Move the time on; sleepers that are due wake in the order of their deadlines."""
        self._now_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now_s:
            heapq.heappop(self._sleepers)[2].set()
