"""A deadline on a `Clock`: every wait ends, and says what it was waiting for.

`asyncio.timeout` would do on the wall clock; this one follows the clock that is given, so that a simulated
node's deadlines pass in simulated time. Code that does not wait costs no task.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError


@contextlib.asynccontextmanager
async def deadline(clock: Clock, timeout_s: float, waiting_for: str) -> AsyncIterator[None]:
    """Interrupt the body once `timeout_s` have passed.

    Raises:
        NetworkError: the time is over; the message names what was waited for.
    """
    task = asyncio.current_task()
    assert task is not None, "a deadline needs a running task"
    expired, before = False, task.cancelling()

    async def watch() -> None:
        nonlocal expired
        await clock.sleep(timeout_s)
        expired = True
        task.cancel()

    loop = asyncio.get_running_loop()
    watcher: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    begins = loop.call_soon(begin)
    try:
        yield
    except asyncio.CancelledError:
        if not expired or task.uncancel() > before:
            raise
        raise NetworkError(f"no answer within {timeout_s:g} s while waiting for {waiting_for}") from None
    finally:
        begins.cancel()
        if watcher is not None:
            watcher.cancel()
