"""A loop on a fake clock: it jumps where all wait, keeps the order of deadlines, and says when nothing can come."""

import asyncio
import time

import pytest

from waggle.core.clock import FakeClock
from waggle.lab.jumping import run


def test_hours_pass_at_once_and_in_order() -> None:
    clock, woken = FakeClock(0.0), list[tuple[str, float]]()

    async def sleeper(name: str, *naps_s: float) -> None:
        for nap_s in naps_s:
            await clock.sleep(nap_s)
            woken.append((name, clock.now_s()))

    async def main() -> str:
        await asyncio.gather(sleeper("a", 3600.0, 10.0), sleeper("b", 3605.0), sleeper("c", 1.0, 3599.0))
        return "done"

    begun_s = time.monotonic()
    assert run(main(), clock) == "done"
    assert time.monotonic() - begun_s < 5
    assert woken == [("c", 1.0), ("a", 3600.0), ("c", 3600.0), ("b", 3605.0), ("a", 3610.0)]


def test_time_stands_still_while_somebody_can_go_on() -> None:
    clock = FakeClock(0.0)

    async def main() -> float:
        sleeping = asyncio.create_task(clock.sleep(5.0))
        for _ in range(100):
            await asyncio.sleep(0)
        before_s = clock.now_s()
        await sleeping
        return before_s

    assert run(main(), clock) == 0.0
    assert clock.now_s() == 5.0


def test_waiting_for_nothing_is_an_error_and_no_standstill() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="cannot go on"):
        run(main(), FakeClock())
