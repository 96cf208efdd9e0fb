"""Clocks: the fake one moves only when told to, and wakes its sleepers in order."""

import asyncio
import time

import pytest

from waggle.core.clock import Clock, FakeClock, SystemClock


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_sleepers_wake_in_order_of_their_deadlines() -> None:
    async def run() -> None:
        clock, woken = FakeClock(), []

        async def sleeper(seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(seconds)

        tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2, 1.5)]
        await settle()
        clock.advance(0.5)
        await settle()
        assert woken == []
        clock.advance(1.5)
        await settle()
        assert woken == [1, 1.5, 2]
        clock.advance(10)
        await asyncio.gather(*tasks)
        assert woken == [1, 1.5, 2, 3]

    asyncio.run(run())


def test_time_stands_still() -> None:
    clock = FakeClock(5.0)
    assert clock.now_s() == clock.now_s() == 5.0
    clock.advance(0.25)
    assert clock.now_s() == 5.25


@pytest.mark.parametrize("clock", [FakeClock(), SystemClock()])
@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_no_wait(clock: Clock, seconds: float) -> None:
    async def run() -> None:
        await asyncio.wait_for(clock.sleep(seconds), 1)

    asyncio.run(run())


def test_a_cancelled_sleeper_is_forgotten_and_the_others_wake() -> None:
    async def run() -> None:
        clock = FakeClock()
        tasks = [asyncio.create_task(clock.sleep(seconds)) for seconds in (1, 2, 3)]
        await settle()
        tasks[0].cancel()
        await settle()
        assert len(clock._sleepers) == 2
        clock.advance(3)
        await asyncio.gather(*tasks[1:])
        assert not clock._sleepers

    asyncio.run(run())


def test_the_system_clock_is_the_machines() -> None:
    async def run() -> None:
        clock = SystemClock()
        assert abs(clock.now_s() - time.time()) < 5
        await clock.sleep(0.001)

    asyncio.run(run())


def test_a_jump_goes_to_the_first_who_still_sleeps() -> None:
    async def run() -> None:
        clock = FakeClock(0.0)
        assert not clock.jump()
        tasks = [asyncio.create_task(clock.sleep(seconds)) for seconds in (1, 2, 2, 5)]
        await settle()
        tasks[0].cancel()
        await settle()
        assert clock.jump()
        assert clock.now_s() == 2.0
        await settle()
        assert [task.done() for task in tasks] == [True, True, True, False]
        assert clock.jump()
        assert clock.now_s() == 5.0
        assert not clock.jump()

    asyncio.run(run())
