"""A sender held to a rate, on a clock that jumps."""

import asyncio

from waggle.core.clock import FakeClock
from waggle.net.pace import Pace


def sent_after_s(pace: Pace, clock: FakeClock, *sizes: int) -> list[float]:
    """When each of these could go, one after the other."""
    times: list[float] = []

    async def send() -> None:
        started_s = clock.now_s()
        for size in sizes:
            await pace.send(size)
            times.append(round(clock.now_s() - started_s, 1))

    async def story() -> None:
        task = asyncio.create_task(send())
        while not task.done():
            await asyncio.sleep(0)
            clock.advance(0.1)

    asyncio.run(story())
    return times


def test_a_second_at_once_then_the_rate() -> None:
    clock = FakeClock()
    pace = Pace(clock, 1000.0)
    first, second, third, fourth = sent_after_s(pace, clock, 1000, 500, 500, 1000)
    assert first == 0
    assert 0.4 <= second <= 0.7
    assert 0.9 <= third <= 1.2
    assert 1.9 <= fourth <= 2.3


def test_who_was_silent_saves_nothing_up_beyond_a_second() -> None:
    clock = FakeClock()
    pace = Pace(clock, 1000.0)
    sent_after_s(pace, clock, 1000)
    clock.advance(100)
    assert sent_after_s(pace, clock, 1000, 1000)[1] >= 0.9


def test_without_a_limit_nothing_waits() -> None:
    clock = FakeClock()
    pace = Pace(clock)
    assert sent_after_s(pace, clock, 1 << 30, 1 << 30) == [0, 0]
    assert pace.piece_bytes > 1 << 20
    assert Pace(clock, 8000.0).piece_bytes == 8000
    assert Pace(clock, 100.0).piece_bytes == 1024
