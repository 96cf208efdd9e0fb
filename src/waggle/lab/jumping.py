"""An event loop whose time is a fake clock's: where nobody can go on, the clock jumps to the first who sleeps.

A simulated hour takes as long as what is computed in it. The loop asks its selector how long it may sleep only when
nothing is ready to run, and that is the moment to jump; so the order of everything follows from the program and the
deadlines alone, and equal seeds give equal runs. Left out: sockets, signals in between and anything else that waits
for the world outside.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from waggle.core.clock import FakeClock

T = TypeVar("T")


class _Idle(selectors.SelectSelector):
    """A selector that moves a clock on instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        if self._clock.jump():
            return []
        raise RuntimeError("everybody waits for somebody and nobody for a time; a simulation cannot go on")


def run(main: Coroutine[Any, Any, T], clock: FakeClock) -> T:
    """Run `main` to its end on the time of `clock`."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Idle(clock))) as runner:
        return runner.run(main)
