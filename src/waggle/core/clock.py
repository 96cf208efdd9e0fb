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
        self._sleepers: dict[int, asyncio.Event] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Of all who fell asleep; who was cancelled since is passed over when his turn comes."""

    def now_s(self) -> float:
        return self._now_s

    def passed_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        number = next(self._order)
        awake = self._sleepers[number] = asyncio.Event()
        heapq.heappush(self._deadlines, (self._now_s + seconds, number))
        try:
            await awake.wait()
        except asyncio.CancelledError:
            self._sleepers.pop(number, None)
            raise

    def advance(self, seconds: float) -> None:
        """Move the time on; sleepers that are due wake in the order of their deadlines."""
        self._now_s += seconds
        while self._deadlines and self._deadlines[0][0] <= self._now_s:
            if sleeper := self._sleepers.pop(heapq.heappop(self._deadlines)[1], None):
                sleeper.set()

    def jump(self) -> bool:
        """Move the time on to the first sleeper's deadline and wake who is due then. False where nobody sleeps."""
        while self._deadlines and self._deadlines[0][1] not in self._sleepers:
            heapq.heappop(self._deadlines)
        if not self._deadlines:
            return False
        self._now_s = max(self._now_s, self._deadlines[0][0])
        self.advance(0.0)
        return True
