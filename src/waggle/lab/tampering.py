"""What attackers send: a transport that alters what leaves it, and exchanges that offer what is not theirs to offer.

They stand around honest parts, so that honest code has no line for them.
"""

from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache

from waggle.core.codec import encode, pack
from waggle.core.rng import rng_for
from waggle.core.sealing import announce, seal
from waggle.core.types import Body, Experience, Peer
from waggle.net.transport import MAX_REPLY_BYTES, Answer, Ruling, Subscription, Transport, Validate
from waggle.node.exchange import MAX_ANNOUNCEMENT_BYTES, MAX_BATCH_BYTES, MAX_TOLD, Exchange
from waggle.node.node import Node

FLOOD = MAX_TOLD + 50
"""Announcements of a flood, each round."""
KEPT_MESSAGES = 64


class Altering:
    """A transport that lets everything pass; what is altered is the subclass's. Fills `Transport`."""

    def __init__(self, inner: Transport, seed: int) -> None:
        self.id, self.max_message, self._inner = inner.id, inner.max_message, inner
        self._rng = rng_for(seed, "tampering", inner.id)

    @property
    def counts(self) -> Counter[str]:
        return self._inner.counts

    @counts.setter
    def counts(self, counts: Counter[str]) -> None:
        self._inner.counts = counts

    async def start(self) -> Peer:
        return await self._inner.start()

    async def join(self, bootstrap: Sequence[Peer]) -> None:
        await self._inner.join(bootstrap)

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        return self._inner.subscribe(topic, validate)

    async def publish(self, topic: bytes, data: bytes, fanout: int = 0) -> int:
        for other in self.instead(data):
            await self._inner.publish(topic, other, fanout)
        return await self._inner.publish(topic, data, fanout)

    def serve(self, proto: str, answer: Answer) -> None:
        async def altered(caller: bytes, body: bytes) -> bytes:
            return self.reply(await answer(caller, body))

        self._inner.serve(proto, altered)

    async def request(
        self, peer: bytes, proto: str, body: bytes, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        return await self._inner.request(peer, proto, body, timeout_s=timeout_s, max_reply_bytes=max_reply_bytes)

    def peers(self) -> list[bytes]:
        return self._inner.peers()

    async def close(self) -> None:
        await self._inner.close()

    def instead(self, data: bytes) -> list[bytes]:
        """What else to publish."""
        return []

    def reply(self, data: bytes) -> bytes:
        """What to answer."""
        return data


class Malformed(Altering):
    """Broken bytes beside each announcement and in every other answer."""

    def instead(self, data: bytes) -> list[bytes]:
        return [self._broken(data)]

    def reply(self, data: bytes) -> bytes:
        return self._broken(data) if self._rng.random() < 0.5 else data

    def _broken(self, data: bytes) -> bytes:
        kind, place = int(self._rng.integers(3)), int(self._rng.integers(len(data)))
        if kind == 0:
            return data[:place]
        if kind == 1:
            return data + b"\0"
        return data[:place] + bytes((data[place] ^ 1 << int(self._rng.integers(8)),)) + data[place + 1 :]


class Oversized(Altering):
    """Announcements above the limit, and every other answer a bomb: a small frame of many zeros."""

    def instead(self, data: bytes) -> list[bytes]:
        return [data + bytes(MAX_ANNOUNCEMENT_BYTES)]

    def reply(self, data: bytes) -> bytes:
        return _bomb() if self._rng.random() < 0.5 else data


@lru_cache(maxsize=1)
def _bomb() -> bytes:
    return pack(bytes(MAX_BATCH_BYTES + 1))


class Replaying(Altering):
    """Sends on what others announced, and again what it announced long ago."""

    def __init__(self, inner: Transport, seed: int) -> None:
        super().__init__(inner, seed)
        self._heard, self._said = deque[bytes](maxlen=KEPT_MESSAGES), deque[bytes](maxlen=KEPT_MESSAGES)

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        def keeping(sender: bytes, data: bytes) -> Ruling:
            self._heard.append(data)
            return validate(sender, data)

        return self._inner.subscribe(topic, keeping)

    def instead(self, data: bytes) -> list[bytes]:
        again = [*list(self._heard)[:4], *list(self._said)[:2]]
        self._said.append(data)
        return again


class Crooked(Exchange):
    """An exchange that takes the place of a node's own."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.exchange.transport, node.taskset.digest, node.config.share, node.events, node.clock)
        self._node = node

    def seal(self, number: int, bodies: Sequence[Body], later_ms: int = 0) -> list[Experience]:
        """Bodies under this node's signature."""
        now_ms = int(self._node.clock.now_s() * 1000)
        return seal(self._node.key, self._node.taskset.digest, number, now_ms + later_ms, bodies)


class Copying(Crooked):
    """Offers others' answers as its own."""

    async def offer(self, number: int, experiences: Sequence[Experience]) -> int:
        me = self._node.key.id
        bodies = [
            Body(g.task.ref, g.policy, g.sampling, tuple(r.completion for r in g.rollouts), me, number)
            for g in self._node.pool.groups()[-4:]
        ]
        return await super().offer(number, self.seal(number, bodies) if bodies else experiences)


class Flooding(Crooked):
    """Announces its round again and again, each time with another signature."""

    async def offer(self, number: int, experiences: Sequence[Experience]) -> int:
        reached = await super().offer(number, experiences)
        bodies = [experience.body for experience in experiences]
        for later_ms in range(1, FLOOD * bool(bodies) + 1):
            data = encode(announce(self._node.taskset.digest, self.seal(number, bodies, later_ms)))
            await self.transport.publish(self._node.taskset.digest, data, self._node.config.share.fanout)
        return reached
