"""One neighbour: its link, what waits to be sent to it, and how much it may send.

Sending never waits: frames queue up to a bound, and one task writes what has gathered in one go. A neighbour who reads
too slowly loses messages, which are counted, and holds nobody up; one who sends more frames than anybody needs is
dropped.
"""

import asyncio
import contextlib
from collections import deque

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError
from waggle.net.allowance import Allowance
from waggle.net.deadline import deadline
from waggle.net.wire import Link, Rude

MAX_WAITING_BYTES = 8 << 20
MAX_WAITING = 1024
BATCH_BYTES = 1 << 18
FRAMES_PER_S, FRAMES_AT_ONCE = 100.0, 1000.0
"""What a neighbour may send unasked, on average and in a burst."""
TELLINGS_PER_S, TELLINGS_AT_ONCE = 0.1, 8.0
"""How often a neighbour may tell of others; each record costs a signature check."""
NEW_S, LEAVE_S = 5.0, 1.0
FLOWING_BYTES = 512
_MAX_GIVEN = 4096


class Neighbour:
    """Example: `neighbour.post(frame)`, with `neighbour.write()` running as a task."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link, self._clock = link, clock
        self.heard_s = self.posted_s = clock.passed_s()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._more, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._since_s = clock.passed_s()
        self._frames = Allowance(FRAMES_PER_S, FRAMES_AT_ONCE, clock)
        self.tellings = Allowance(TELLINGS_PER_S, TELLINGS_AT_ONCE, clock)
        self._received_bytes = 0
        self.is_flowing = False
        """Whether more than small talk came before the last look."""
        self._given: dict[bytes, int] = {}
        self._closed = False

    @property
    def is_new(self) -> bool:
        """Whether it has not been a neighbour for long."""
        return self._clock.passed_s() - self._since_s < NEW_S

    def post(self, data: bytes, first: bool = False) -> bool:
        """Queue a frame, or put it before all that wait. False where the queue is full."""
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            return False
        if first:
            self._waiting.appendleft(data)
        else:
            self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.posted_s = self._clock.passed_s()
        self._idle.clear()
        self._more.set()
        return True

    def look(self, now_s: float) -> None:
        """Note whether any byte came, be it of a frame that is still under way."""
        came_bytes = self.link.received_bytes - self._received_bytes
        self._received_bytes = self.link.received_bytes
        self.is_flowing = came_bytes >= FLOWING_BYTES
        if came_bytes:
            self.heard_s = now_s

    def may_have(self, name: bytes) -> bool:
        """Whether a message goes to it; the same one twice at most."""
        self._given[name] = given = self._given.pop(name, 0) + 1
        if len(self._given) > _MAX_GIVEN:
            del self._given[next(iter(self._given))]
        return given <= 2

    def count(self, cost: float) -> None:
        """Something came that was not asked for, and costs as much as so many small frames.

        Raises:
            Rude: too much came.
        """
        if not self._frames.take(cost):
            raise Rude("flood", "too many frames")

    async def write(self) -> None:
        """Send what waits, for as long as the link lives; whoever reads from it learns of its end."""
        try:
            while not self._closed:
                await self._more.wait()
                if self._waiting:
                    await self.link.send(self._batch())
                if not self._waiting:
                    self._more.clear()
                    self._idle.set()
        except NetworkError:
            self._idle.set()

    def _batch(self) -> list[bytes]:
        batch = [self._waiting.popleft()]
        size_bytes = len(batch[0])
        while self._waiting and size_bytes + len(self._waiting[0]) <= BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size_bytes += len(batch[-1])
        self._waiting_bytes -= size_bytes
        return batch

    async def leave(self, goodbye: bytes, why: str) -> None:
        """Say goodbye, then end the link once that is written, or after a second."""
        self.post(goodbye)
        with contextlib.suppress(NetworkError):
            async with deadline(self._clock, LEAVE_S, "a neighbour to take leave"):
                await self._idle.wait()
        self.close(why)

    def close(self, why: str) -> None:
        """End the link; what waits is lost."""
        self._closed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self.link.close(why)
        self._more.set()
        self._idle.set()
