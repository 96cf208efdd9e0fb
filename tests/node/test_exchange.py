"""The exchange beside hostile peers: whatever one of them answers or says, the others' work comes in as before."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.node.exchanges import (
    CHARTER,
    EVE,
    GOOD,
    ME,
    SHARE,
    UNKNOWN,
    World,
    never,
    offered,
    replies,
    sealed,
)
from tests.node.parts import config
from waggle.core.clock import FakeClock
from waggle.core.codec import decode, digest, encode
from waggle.core.errors import NetworkError
from waggle.core.events import NoEvents
from waggle.core.sealing import announce, answers_of
from waggle.core.types import Answers, Peer, PolicyRef
from waggle.net.memory import MemoryNetwork
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


def test_what_is_named_twice_is_given_once_and_of_long_greetings_the_newest_is_read() -> None:
    async def story() -> None:
        world = World(replies(pack_batch([b"%d" % n + bytes(60_000) for n in range(8)], 1 << 20)))
        await world.meet()
        assert [news.data[:1] for news in await world.me.hear()] == [b"4", b"5", b"6", b"7"]
        await world.good.offer(1, sealed(1))
        one, other = (offer.entry.id for offer in offered(sealed(1)))
        body = encode(Pull(CHARTER, (one, other, one, one)))
        reply = await world.eve.request(GOOD.id, PULL, body, timeout_s=1)
        told = [decode(Answers, data).number for data in unpack_batch(reply, MAX_BATCH_BYTES, 10)]
        assert told == [0, 1]

    asyncio.run(story())
