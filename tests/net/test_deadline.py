"""A deadline on a fake clock: it ends a wait, names it, and leaves nothing behind."""

import asyncio

import pytest

from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.net.deadline import deadline


async def turn(clock: FakeClock, seconds: float) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(seconds)
    for _ in range(5):
        await asyncio.sleep(0)


def test_it_ends_a_wait_and_names_it() -> None:
    async def run() -> None:
        clock = FakeClock()

        async def wait() -> None:
            async with deadline(clock, 5, "the bus"):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await turn(clock, 4.9)
        assert not waiting.done()
        await turn(clock, 0.2)
        with pytest.raises(NetworkError, match="no answer within 5 s while waiting for the bus"):
            await waiting

    asyncio.run(run())


def test_in_time_leaves_no_sleeper() -> None:
    async def run() -> None:
        clock = FakeClock()
        async with deadline(clock, 5, "x"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(clock._sleepers) == 1
        await asyncio.sleep(0)
        assert not clock._sleepers
        clock.advance(10)
        await asyncio.sleep(0)  # nobody is cancelled afterwards

    asyncio.run(run())


def test_other_errors_and_cancellations_pass() -> None:
    async def run() -> None:
        clock = FakeClock()
        with pytest.raises(ZeroDivisionError):
            async with deadline(clock, 5, "x"):
                raise ZeroDivisionError

        async def wait() -> None:
            async with deadline(clock, 5, "x"):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


@pytest.mark.parametrize(("outer_s", "inner_s", "named"), [(5, 9, "outer"), (9, 5, "inner"), (5, 5, "outer")])
def test_nested_the_earlier_one_speaks(outer_s: float, inner_s: float, named: str) -> None:
    async def run() -> None:
        clock = FakeClock()

        async def wait() -> None:
            async with deadline(clock, outer_s, "outer"), deadline(clock, inner_s, "inner"):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await turn(clock, 5)
        with pytest.raises(NetworkError, match=named):
            await waiting

    asyncio.run(run())
