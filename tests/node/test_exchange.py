"""The exchange beside hostile peers: whatever one of them answers or says, the others' work comes in as before."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.node.parts import charter_of, config, keys
from waggle.core.clock import FakeClock
from waggle.core.codec import digest, encode, pack
from waggle.core.errors import NetworkError
from waggle.core.events import NoEvents
from waggle.core.sealing import announce, answers_of, charter_digest, seal
from waggle.core.types import Body, Completion, Experience, Family, Peer, PolicyRef, Sampling, TaskRef, Text
from waggle.net.memory import MemoryNetwork, MemoryTransport
from waggle.node.exchange import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_BATCH_BYTES,
    MAX_IDS,
    MAX_TOLD,
    PULL,
    RECENT,
    Exchange,
    Pull,
)
from waggle.swarm.batch import pack_batch, unpack_batch
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_at_most_its_wait(name: str) -> None:
    reply, reason = HOSTILE[name]

    async def story() -> None:
        world = World(reply)
        await world.meet()
        await world.good.offer(1, sealed(1))
        took_s = await world.passing(world.me.hear())
        assert [sender for sender, _ in world.result] == [GOOD.id] * 2  # once greeted, once told
        assert took_s == (SHARE.patience_s if name == "no answer" else 0)
        await world.passing(world.clock.sleep(SHARE.timeout_s))
        assert dict(world.me.refused) == ({reason: 1} if reason else {})
        assert world.events.counts == {"refused" if reason else "unreachable": 1}
        await world.passing(world.me.pull(EVE.id, UNKNOWN))
        assert world.result == []
        assert world.me.refused[reason or ""] == (2 if reason else 0)
        took_s = await world.passing(world.me.pull(GOOD.id, offered(sealed(1))))
        assert (world.result, took_s) == ([encode(e) for e in sealed(1)], 0)

    asyncio.run(story())


def test_a_peer_that_never_answers_is_asked_less_and_less_and_greeted_when_it_is_back() -> None:
    async def story() -> None:
        awake = False

        async def later(caller: bytes, body: bytes) -> bytes:
            return pack_batch([encode(announce(CHARTER, sealed(3)))], 1 << 20) if awake else await never(caller, body)

        world = World(later)
        await world.meet()
        waits = []
        for _ in range(64):
            waits.append(await world.passing(world.me.hear()))
            await world.passing(world.clock.sleep(SHARE.timeout_s))
        assert sum(waits) == SHARE.patience_s * world.num_asked
        assert [number for number, wait in enumerate(waits) if wait] == [0, 2, 6, 14, 30, 62]
        awake = True
        for _ in range(64):
            await world.passing(world.me.hear())
            if world.result:
                break
        assert [sender for sender, _ in world.result] == [EVE.id]
        asked = world.num_asked
        await world.passing(world.me.hear())
        assert world.num_asked == asked  # greeted once

    asyncio.run(story())


def test_who_failed_a_pull_is_greeted_again_for_what_was_missed() -> None:
    async def story() -> None:
        world = World(replies(pack_batch([encode(announce(CHARTER, sealed(3)))], 1 << 20)))
        world.eve.serve(PULL, raises)
        await world.meet()
        assert len(await world.me.hear()) == 1
        assert await world.me.pull(EVE.id, UNKNOWN) == []
        await world.eve.publish(CHARTER, b"told while at rest")
        assert await world.me.hear() == []
        assert world.num_asked == 1
        assert [news.sender for news in await world.me.hear()] == [EVE.id]
        assert world.num_asked == 2

    asyncio.run(story())


def test_silent_peers_are_waited_for_together() -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        for key in keys(7)[3:]:
            silent = world.network.attach(key.id)
            silent.serve(RECENT, never)
            await silent.start()
            await silent.join([Peer(ME.id, "memory")])
        assert len(world.me.transport.peers()) == 6
        assert await world.passing(world.me.hear()) == SHARE.patience_s
        await world.passing(world.clock.sleep(SHARE.timeout_s))
        assert world.events.counts["unreachable"] == 5

    asyncio.run(story())


def test_what_a_slow_peer_answers_serves_the_next_round() -> None:
    async def story() -> None:
        async def slow(caller: bytes, body: bytes) -> bytes:
            await world.clock.sleep(3)
            return pack_batch([encode(announce(CHARTER, sealed(3)))], 1 << 20)

        world = World(slow)
        await world.meet()
        assert [await world.passing(world.me.hear()) for _ in range(2)] == [SHARE.patience_s, 0]
        assert world.result == []
        assert world.num_asked == 1, "asked again while it is being asked"
        await world.passing(world.clock.sleep(3))
        assert await world.passing(world.me.hear()) == 0
        assert [sender for sender, _ in world.result] == [EVE.id]

        await world.good.offer(1, sealed(1))

        async def slowly(caller: bytes, body: bytes) -> bytes:
            await world.clock.sleep(3)
            return await world.good._serve_pull(caller, body)

        world.good.transport.serve(PULL, slowly)
        wishes = {GOOD.id: offered(sealed(1))}
        assert await world.passing(world.me.pull_all(wishes)) == SHARE.patience_s
        assert world.result == []
        await world.passing(world.clock.sleep(3))
        assert await world.passing(world.me.pull_all({})) == 0
        assert world.result == [(GOOD.id, encode(one)) for one in sealed(1)]
        assert await world.passing(world.me.pull_all({})) == 0
        assert world.result == []

    asyncio.run(story())


def test_a_peer_that_rests_is_not_listened_to() -> None:
    async def story() -> None:
        world = World(raises)
        await world.meet()
        await world.me.hear()
        await world.eve.publish(CHARTER, b"told while at rest")
        assert await world.me.hear() == []
        assert world.num_asked == 1
        await world.eve.publish(CHARTER, b"told after")
        assert [news.data for news in await world.me.hear()] == []
        assert world.num_asked == 2  # asked again, failed again

    asyncio.run(story())


@pytest.mark.parametrize(
    ("size_bytes", "heard"), [(MAX_ANNOUNCEMENT_BYTES, 1), (MAX_ANNOUNCEMENT_BYTES + 1, 0), (1 << 20, 0)]
)
def test_an_announcement_that_is_too_large_is_not_read(size_bytes: int, heard: int) -> None:
    async def story() -> None:
        world = World(replies(pack_batch((), 10)))
        await world.meet()
        await world.me.hear()
        await world.eve.publish(CHARTER, bytes(size_bytes))
        assert len(await world.me.hear()) == heard
        assert dict(world.me.refused) == ({} if heard else {"too-large": 1})
        assert world.me.transport.counts["rejected"] == 1 - heard

    asyncio.run(story())


def test_a_flood_of_one_neighbour_is_bounded_and_leaves_room_for_others() -> None:
    async def story() -> None:
        world = World(replies(pack_batch((), 10)))
        await world.meet()
        await world.me.hear()
        for number in range(3000):
            await world.eve.publish(CHARTER, b"%d" % number)
        await world.good.offer(1, sealed(1))
        heard = await world.me.hear()
        assert sum(sender == EVE.id for sender, _ in heard) == MAX_TOLD
        assert [data for sender, data in heard if sender == GOOD.id] == [encode(announce(CHARTER, sealed(1)))]
        assert world.me.refused == {"too-many": 3000 - MAX_TOLD}
        await world.eve.publish(CHARTER, b"after")
        assert [data for _, data in await world.me.hear()] == [b"after"]  # a look makes room again

    asyncio.run(story())


FIRST, SECOND = (e.body for e in sealed(1))
WRONG = {
    "a place that was not asked for": (encode(answers_of(2, FIRST)), "signature"),
    "another policy": (encode(answers_of(0, replace(FIRST, policy=PolicyRef("m", b"w" * 32, 1)))), "signature"),
    "another answer": (encode(answers_of(0, replace(FIRST, completions=FIRST.completions[::-1]))), "signature"),
    "an experience": (encode(sealed(1)[0]), "schema"),
    "garbage": (b"\x01garbage", "schema"),
    "another version": (b"\x02", "version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_answers_that_were_not_announced_are_refused_one_by_one(name: str) -> None:
    wrong, reason = WRONG[name]

    async def story() -> None:
        world = World(replies(pack_batch([wrong, encode(answers_of(1, SECOND))], 1 << 20)))
        await world.meet()
        assert await world.me.pull(EVE.id, offered(sealed(1))) == [encode(sealed(1)[1])]
        assert world.me.refused == {reason: 1}
        assert world.events.counts == {"refused": 1}

    asyncio.run(story())


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 400), st.binary(max_size=4), st.integers(0, 1))
def test_whatever_was_changed_on_the_way_only_what_was_announced_comes_out(at: int, put: bytes, number: int) -> None:
    good = encode(answers_of(number, (FIRST, SECOND)[number]))
    item = good[:at] + put + good[at + len(put) :]

    async def story() -> None:
        world = World(replies(pack_batch([item], 1 << 20)))
        await world.meet()
        known = [encode(e) for e in sealed(1)]
        came = await world.me.pull(EVE.id, offered(sealed(1)))
        assert came == ([known[number]] if item == good else []) or came[0] in known
        assert len(came) + world.me.refused.total() == 1

    asyncio.run(story())


def test_what_is_not_there_is_left_out_of_a_pull() -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        await world.good.offer(1, sealed(1))
        mixed = [UNKNOWN[0], offered(sealed(1))[1], UNKNOWN[1]]
        assert await world.me.pull(GOOD.id, mixed) == [encode(sealed(1)[1])]
        assert await world.me.pull(GOOD.id, UNKNOWN) == []
        assert await world.me.pull(GOOD.id, []) == []

    asyncio.run(story())


def test_another_swarm_is_given_nothing() -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        await world.good.offer(1, sealed(1))
        other = b"o" * 32
        asked = encode(Pull(other, (digest(sealed(1)[0].body),)))
        for proto, body in ((PULL, asked), (RECENT, other), (RECENT, b"")):
            reply = await world.eve.request(GOOD.id, proto, body, timeout_s=1)
            assert unpack_batch(reply, 1 << 20, 10) == []

    asyncio.run(story())


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01\x92", bytes(60_000), encode(Pull(CHARTER, ()))[:-1]])
def test_a_request_that_cannot_be_read_fails_for_its_sender_alone(body: bytes) -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        with pytest.raises(NetworkError, match="failed to answer waggle/pull/1: Pull"):
            await world.eve.request(GOOD.id, PULL, body, timeout_s=1)
        await world.good.offer(1, sealed(1))
        assert len(await world.me.pull(GOOD.id, offered(sealed(1))[:1])) == 1

    asyncio.run(story())


def test_only_so_many_rounds_stay_on_offer() -> None:
    async def story() -> None:
        world = World(replies(pack_batch((), 10)))
        await world.meet()
        for number in range(1, 13):
            await world.good.offer(number, sealed(number))
            await world.good.offer(number, [])  # a round without anything to share takes no place
        assert list(world.good.window) == list(range(5, 13))
        assert len(world.good._offered) == 2 * SHARE.max_lag
        assert await world.me.pull(GOOD.id, offered(sealed(4))[:1]) == []
        heard = await world.me.hear()
        assert [data for _, data in heard[: SHARE.max_lag]] == [
            encode(announce(CHARTER, sealed(number))) for number in range(5, 13)
        ]

    asyncio.run(story())


def test_a_long_memory_is_told_within_what_others_read() -> None:
    async def story() -> None:
        clock = FakeClock()
        network = MemoryNetwork(0, clock)
        share = config(f"share.max_lag={MAX_IDS + 50}").share
        me, good = (Exchange(network.attach(key.id), CHARTER, share, NoEvents(), clock) for key in (ME, GOOD))
        await good.start([])
        for number in range(1, MAX_IDS + 31):
            good.remember(number, sealed(number, 1))
        await me.start([Peer(GOOD.id, "memory")])
        heard = await me.hear()
        assert len(heard) == MAX_IDS
        assert heard[-1].data == encode(announce(CHARTER, sealed(MAX_IDS + 30, 1)))
        assert not me.refused

    asyncio.run(story())


def test_nobody_to_join_is_no_error_and_nothing_is_said_before_it_is_started() -> None:
    async def story() -> None:
        events = NoEvents()
        me = Exchange(MemoryNetwork(0, FakeClock()).attach(ME.id), CHARTER, SHARE, events, FakeClock())
        assert await me.offer(1, sealed(1)) == 0
        assert events.counts == {"unheard": 1}
        await me.start([Peer(GOOD.id, "memory")])
        assert events.counts == {"unheard": 1, "alone": 1}
        assert await me.hear() == []
        assert await me.offer(2, sealed(2)) == 0
        await me.close()

    asyncio.run(story())
