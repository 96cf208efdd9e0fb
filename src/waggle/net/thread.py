"""A transport on a thread and an event loop of its own, so that networking never waits for training, nor the reverse.

A step keeps the caller's loop busy for seconds; meanwhile neighbours want to be answered and pulled from. Validators
and answers run on the network's thread: they have to be quick and must not share with the caller what is not safe to
share. Of a subscription only `drain` may be called from another thread.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from waggle.core.types import Peer
from waggle.net.transport import MAX_REPLY_BYTES, Answer, Subscription, Transport, Validate, not_online

T = TypeVar("T")
_JOIN_S = 5.0


class ThreadTransport:
    """Fills `Transport` by another one. Example: `ThreadTransport(OverlayTransport(key, wire, clock, book))`."""

    def __init__(self, inner: Transport) -> None:
        self.id, self.max_message = inner.id, inner.max_message
        self.counts: Counter[str] = inner.counts
        self._inner = inner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> Peer:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # a daemon: a process that ends in disorder does not wait for the network
            self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
            self._thread.start()
        try:
            return await self._there(self._inner.start())
        except BaseException:
            self._end()
            raise

    async def join(self, bootstrap: Sequence[Peer]) -> None:
        await self._there(self._inner.join(bootstrap))

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        return self._inner.subscribe(topic, validate)

    async def publish(self, topic: bytes, data: bytes, fanout: int = 0) -> int:
        return await self._there(self._inner.publish(topic, data, fanout))

    def serve(self, proto: str, answer: Answer) -> None:
        self._inner.serve(proto, answer)

    async def request(
        self, peer: bytes, proto: str, body: bytes, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        asked = self._inner.request(peer, proto, body, timeout_s=timeout_s, max_reply_bytes=max_reply_bytes)
        return await self._there(asked)

    def peers(self) -> list[bytes]:
        return self._inner.peers()

    async def close(self) -> None:
        if self._loop is None:
            return
        try:
            await self._there(self._inner.close())
        finally:
            self._end()

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the network's thread and wait for it here."""
        if self._loop is None:
            work.close()
            raise not_online(self.id)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _end(self) -> None:
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_JOIN_S)
        if not thread.is_alive():
            loop.close()
