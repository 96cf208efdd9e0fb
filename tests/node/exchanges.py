"""Exchanges of honest peers and a bare transport of Eve's, in one process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import zstandard

from tests.node.parts import charter_of, config, keys
from waggle.core.clock import FakeClock
from waggle.core.codec import pack
from waggle.core.events import NoEvents
from waggle.core.sealing import announce, charter_digest, seal
from waggle.core.types import Body, Completion, Experience, Family, Peer, PolicyRef, Sampling, TaskRef, Text
from waggle.net.memory import MemoryNetwork, MemoryTransport
from waggle.node.exchange import (
    MAX_BATCH_BYTES,
    MAX_IDS,
    PULL,
    RECENT,
    Exchange,
)
from waggle.swarm.batch import pack_batch
from waggle.swarm.sampling import Offer, offers

CHARTER = charter_digest(charter_of([Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)]))
ME, GOOD, EVE = keys(3)
SHARE = config("share.timeout_s=10", "share.max_lag=8").share
Reply = Callable[[bytes, bytes], Awaitable[bytes]]


def sealed(number: int, num: int = 2, created_ms: int = 0) -> list[Experience]:
    """A round of the good peer."""
    refs = [TaskRef("chain_sum", b"c" * 32, 5, 0, 10 * number + i) for i in range(num)]
    completions = tuple(Completion((Text(text),), "stop") for text in ("7", "8"))
    bodies = [
        Body(ref, PolicyRef("m", b"w" * 32, 0), Sampling(max_tokens=6), completions, GOOD.id, number) for ref in refs
    ]
    return seal(GOOD, CHARTER, number, created_ms or 1000 * number, bodies)


def offered(experiences: list[Experience]) -> list[Offer]:
    return offers(announce(CHARTER, experiences), GOOD.id)


UNKNOWN = offered(sealed(99))
"""Groups that nobody holds."""


def replies(data: bytes) -> Reply:
    async def reply(caller: bytes, body: bytes) -> bytes:
        return data

    return reply


async def raises(caller: bytes, body: bytes) -> bytes:
    raise RuntimeError("no")


async def never(caller: bytes, body: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


def bomb(size_bytes: int) -> bytes:
    """A small frame that declares and holds many zeros."""
    return pack(bytes(size_bytes))


def streamed(size_bytes: int) -> bytes:
    """A frame that does not say how much it holds."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(bytes(size_bytes)) + compressor.flush()


HOSTILE = {
    "garbage": (replies(b"\x00garbage"), "compression"),
    "nothing in it": (replies(b""), "compression"),
    "torn frame": (replies(pack_batch([b"x" * 1000], 10_000)[:-3]), "compression"),
    "something behind the frame": (replies(pack_batch([b"x"], 100) + b"more"), "compression"),
    "a length beyond the end": (replies(pack(b"\xff\xff\xff\xffabc")), "framing"),
    "half a length": (replies(pack(b"\x00\x00")), "framing"),
    "too many items": (replies(pack_batch([b""] * (MAX_IDS + 1), 1 << 20)), "too-many"),
    "a bomb": (replies(bomb(MAX_BATCH_BYTES + 1)), "too-large"),
    "a bomb of unknown size": (replies(streamed(64 << 20)), "too-large"),
    "more than a reply may hold": (replies(bytes(MAX_BATCH_BYTES + 1)), None),
    "an exception": (raises, None),
    "no answer": (never, None),
}


class World:
    """Me and the good peer as exchanges, and Eve as a bare transport, all neighbours."""

    def __init__(self, eve: Reply) -> None:
        self.clock = FakeClock()
        self.network = MemoryNetwork(0, self.clock)
        self.events = NoEvents()
        self.me = Exchange(self.network.attach(ME.id), CHARTER, SHARE, self.events, self.clock)
        self.good = Exchange(self.network.attach(GOOD.id), CHARTER, SHARE, NoEvents(), self.clock)
        self.eve: MemoryTransport = self.network.attach(EVE.id)
        self.num_asked = 0
        self.result: Any = None

        async def counted(caller: bytes, body: bytes) -> bytes:
            self.num_asked += 1
            return await eve(caller, body)

        self.eve.serve(RECENT, counted)
        self.eve.serve(PULL, counted)

    async def meet(self) -> None:
        await self.good.start([])
        await self.me.start([Peer(GOOD.id, "memory")])
        await self.eve.start()
        await self.eve.join([Peer(ME.id, "memory")])

    async def passing(self, waits: Coroutine[Any, Any, Any]) -> float:
        """Run something while the time passes; how long it took."""
        started_s = self.clock.now_s()
        task = asyncio.create_task(waits)
        for _ in range(100):
            for _ in range(20):
                await asyncio.sleep(0)
            if task.done():
                self.result = task.result()
                return self.clock.now_s() - started_s
            self.clock.advance(1.0)
        raise AssertionError("it waits for ever")
