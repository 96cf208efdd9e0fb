"""Peers that are slow, silent or broken: what they cost a round, and when they are asked again."""

import asyncio

import pytest

from tests.node.exchanges import (
    CHARTER,
    EVE,
    GOOD,
    HOSTILE,
    ME,
    SHARE,
    UNKNOWN,
    World,
    never,
    offered,
    raises,
    replies,
    sealed,
)
from tests.node.parts import keys
from waggle.core.codec import encode
from waggle.core.sealing import announce
from waggle.core.types import Peer
from waggle.node.exchange import (
    PULL,
    RECENT,
)
from waggle.swarm.batch import pack_batch


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
