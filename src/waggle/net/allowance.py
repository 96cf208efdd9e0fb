"""So much at once, and so much a second again: how every bound on what a peer may cost is counted."""

from waggle.core.clock import Clock


class Allowance:
    """Example: `Allowance(200, 2000, clock).take()`."""

    def __init__(self, per_s: float, at_once: float, clock: Clock) -> None:
        self._per_s, self._at_once, self._clock = per_s, at_once, clock
        self._left, self._looked_s = at_once, clock.passed_s()

    @property
    def left(self) -> float:
        """What may be taken now; below 0 where more was charged than there was."""
        now_s = self._clock.passed_s()
        self._left = min(self._at_once, self._left + self._per_s * max(0.0, now_s - self._looked_s))
        self._looked_s = now_s
        return self._left

    def take(self, cost: float = 1.0) -> bool:
        """Whether so much is left, which is then taken."""
        if self.left < cost:
            return False
        self._left -= cost
        return True

    def charge(self, cost: float) -> float:
        """Take so much in any case. Returns for how many seconds nothing will be left."""
        self._left = self.left - cost
        return max(0.0, -self._left / self._per_s)
