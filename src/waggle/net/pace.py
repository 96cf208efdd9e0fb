"""What a node sends, held to so many bytes a second; and what went over its wire, as the wire counts it.

A piece that is due waits for its turn; nothing is dropped here. A second's worth may go at once, and small frames go
at any time, so that a node whose line is full of answers does not fall silent.
"""

from collections.abc import Callable

from waggle.core.clock import Clock
from waggle.net.allowance import Allowance

LEAST_PIECE_BYTES, SMALL_BYTES = 1024, 256


class Pace:
    """Example: `await Pace(clock, bytes_per_s=8000).send(500)`, before 500 bytes are written. 0 is without a limit."""

    def __init__(self, clock: Clock, bytes_per_s: float = 0.0) -> None:
        self._clock, self._bytes_per_s = clock, bytes_per_s
        self._line = Allowance(bytes_per_s, bytes_per_s, clock)
        self.meter: Callable[[], int] = lambda: 0
        """What went over the wire so far, both ways, in bytes; set by the wire."""

    @property
    def piece_bytes(self) -> int:
        """How much to hand over at a time, so that others get their turn."""
        return max(LEAST_PIECE_BYTES, int(self._bytes_per_s)) if self._bytes_per_s else 1 << 30

    async def send(self, size_bytes: int) -> None:
        """Return once these bytes may go."""
        if not self._bytes_per_s:
            return
        wait_s = self._line.charge(size_bytes)
        if wait_s and size_bytes > SMALL_BYTES:  # what keeps links alive never waits; others wait longer for it
            await self._clock.sleep(wait_s)
