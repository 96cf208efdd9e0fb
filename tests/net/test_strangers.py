"""What strangers and bad neighbours can do to a node of the overlay: cost themselves."""

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from tests.net.overlays import EVE, TOPIC, World, play
from waggle.core.codec import encode
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import frames
from waggle.net.book import signed
from waggle.net.frames import PROTOCOL, Hello, Known, Ping, Push, Request, Want
from waggle.net.overlay import MAX_STRANGERS, SILENT_S
from waggle.net.spread import WANT_S
from waggle.net.terms import Terms
from waggle.net.transport import Ruling, message_id
from waggle.net.wire import Link, Reply


@pytest.mark.parametrize("junk", [b"", b"junk", frames.write(Ping())[:-1], frames.write(Push(TOPIC, b"x")) + b"!"])
def test_a_frame_that_is_none_ends_the_link_and_nothing_else(junk: bytes) -> None:
    async def story(world: World) -> None:
        await world.add(3)
        link, _ = await world.hello(world.nodes[0])
        await link.send([junk])
        await world.pass_s(1)
        assert EVE.id not in world.nodes[0].peers()
        await world.nodes[1].publish(TOPIC, b"still here")
        await world.pass_s(1)
        assert world.heard() == [1, 0, 1]

    play(story)


def test_a_flood_of_frames_ends_the_link() -> None:
    async def story(world: World) -> None:
        await world.add(2)
        link, _ = await world.hello(world.nodes[0])
        with contextlib.suppress(NetworkError):  # the link ends under the flood
            for _ in range(30):
                await link.send([frames.write(Ping())] * 100)
        await world.pass_s(1)
        assert EVE.id not in world.nodes[0].peers()

    play(story)


def test_another_protocol_is_refused_with_the_version_and_counted() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        _, welcome = await world.hello(node, speaks=(PROTOCOL + 1,))
        assert welcome.version == 0
        assert welcome.why == f"this node speaks protocol {PROTOCOL} and not {PROTOCOL + 1}"
        await world.pass_s(1)
        assert node.peers() == []
        assert node.counts["turned-away"] == 1

    play(story)


def test_nodes_of_two_versions_live_in_one_swarm_where_they_share_one() -> None:
    async def story(world: World) -> None:
        (old,) = await world.add(1)
        new = world.make(50, terms=Terms(speaks=(PROTOCOL + 1, PROTOCOL)))
        await new.start()
        await new.join([Peer(old.id, "memory")])
        assert new.peers() == [old.id]
        newest = world.make(51, terms=Terms(speaks=(PROTOCOL + 1,)))
        await newest.start()
        with pytest.raises(NetworkError, match="says: this node speaks protocol 1 and not 2"):
            await newest.join([Peer(old.id, "memory")])
        await newest.join([Peer(new.id, "memory")])
        assert newest.peers() == [new.id]
        world.nodes += [new, newest]

    play(story)


def test_a_node_of_another_swarm_is_turned_away_and_told_why() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        other = world.make(50, terms=Terms(network=b"o" * 32))
        await other.start()
        with pytest.raises(NetworkError, match="says: this node is of another swarm"):
            await other.join([Peer(node.id, "memory")])
        assert (node.peers(), len(node.book)) == ([], 0)
        world.nodes.append(other)

    play(story)


def test_a_swarm_of_members_takes_in_and_answers_no_other() -> None:
    async def story(world: World) -> None:
        host = world.make(50, terms=Terms(admits=lambda peer: peer != EVE.id))
        await host.start()
        world.nodes.append(host)

        async def answer(caller: bytes, body: bytes) -> bytes:
            return b"secret"

        host.serve("ask/1", answer)
        _, welcome = await world.hello(host)
        assert (welcome.version, welcome.why) == (0, "the swarm is for members only")
        wire, _ = await world.eve()
        visit = await wire.dial(Peer(host.id, "memory"))
        reply = await visit.ask(encode(Request("ask/1", b"")), 1000)
        assert reply == Reply(False, b"answers members of its swarm only")

    play(story)


def test_nobody_introduces_himself_as_somebody_else() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        wire, _ = await world.eve()
        link = await wire.dial(Peer(nodes[0].id, "memory"))
        record = nodes[0].book.sample(1, nodes[0]._rng)[0]
        assert record.peer == nodes[1].id
        await link.send([frames.write(Hello((PROTOCOL,), bytes(32), True, record))])
        await world.pass_s(1)
        assert nodes[0].peers() == [nodes[1].id]
        assert EVE.id not in nodes[0].book

    play(story)


def test_a_forged_record_is_not_learned() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        record = signed(EVE, "memory", int(world.clock.now_s() * 1000))
        await world.hello(node, record=replace(record, address="elsewhere"))
        assert EVE.id not in node.book
        assert node.book.counts["signature"] == 1

    play(story)


def test_who_does_not_give_what_he_has_is_passed_over_for_another() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        link, _ = await world.hello(nodes[0])
        data = b"x" * 5000
        name = frames.Have((message_id(TOPIC, data),))
        await link.send([frames.write(name)])  # Eve has it, she says
        await world.pass_s(0.5)
        await nodes[1].publish(TOPIC, data)
        await world.pass_s(0.5)
        assert world.heard() == [0, 0]
        await world.pass_s(WANT_S + 1)
        assert world.heard() == [1, 0]

    play(story)


def test_addresses_where_nobody_answers_make_no_node_silent() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(3)
        dead = [Key.from_seed(bytes([number]) * 32) for number in range(100, 120)]

        async def hang(peer: Peer) -> Link:
            await asyncio.Event().wait()
            raise AssertionError

        for node in nodes:
            node._wire.dial = hang  # type: ignore[method-assign]
            for key in dead:
                now_ms = int(world.clock.now_s() * 1000)
                assert node.book.add(signed(key, "dead", now_ms), now_ms, node._rng)
        await world.pass_s(60)
        assert [node.counts["silent"] for node in nodes] == [0, 0, 0]
        assert [len(node.peers()) for node in nodes] == [2, 2, 2]

    play(story)


def test_a_crowd_of_newcomers_pushes_nobody_out_who_was_there_first() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(16)
        victim = nodes[0]
        honest = set(victim.peers())
        crowd = [Key.from_seed(bytes([number]) * 32) for number in range(100, 140)]
        for key in crowd:
            await world.hello(victim, key)
            await world.pass_s(0.05)
        assert len(victim.peers()) <= 10
        assert len(honest & set(victim.peers())) >= len(honest) - 1

    play(story)


def test_many_at_once_do_not_get_more_places_than_there_are() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        crowd = [Key.from_seed(bytes([number]) * 32) for number in range(100, 160)]
        answers = await asyncio.gather(*(world.hello(node, key, alone=False) for key in crowd), return_exceptions=True)
        assert sum(not isinstance(answer, BaseException) and answer[1].version for answer in answers) == 10
        await world.pass_s(0.5)
        assert len(node.peers()) == 10
        assert len(node._strangers) <= MAX_STRANGERS
        await world.pass_s(SILENT_S + 1)
        assert (node.peers(), len(node._strangers)) == ([], 0)

    play(story)


def test_who_comes_and_goes_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        before = len(node._tasks)
        for number in range(100, 130):
            link, _ = await world.hello(node, Key.from_seed(bytes([number]) * 32))
            await world.pass_s(0.1)
            link.close("gone")
            await world.pass_s(0.1)
        assert node.peers() == []
        assert len(node._tasks) - len(node._meetings) == before
        assert len(world.wire(node).links) <= Terms().least  # it asks some of them back

    play(story)


@pytest.mark.parametrize("size", [5000, 900_000])
def test_a_large_message_that_nobody_asked_for_ends_the_link(size: int) -> None:
    async def story(world: World) -> None:
        await world.add(2)
        link, _ = await world.hello(world.nodes[0])
        await link.send([frames.write(Push(TOPIC, bytes(size)))])
        await world.pass_s(1)
        assert EVE.id not in world.nodes[0].peers()
        assert world.heard() == [0, 0]

    play(story)


def test_nobody_draws_one_message_again_and_again() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(1)
        link, _ = await world.hello(nodes[0])
        push = Push(TOPIC, bytes(100_000))
        await nodes[0].publish(TOPIC, push.data)
        before = world.wire(nodes[0]).sent_bytes
        await link.send([frames.write(Want((message_id(TOPIC, push.data),)))] * 50)
        await world.pass_s(1)
        assert 200_000 < world.wire(nodes[0]).sent_bytes - before < 210_000

    play(story)


def test_junk_does_not_make_known_messages_forgotten() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        nodes[0].subscribe(TOPIC, lambda sender, data: Ruling.REJECT if data[:1] == b"j" else Ruling.DELIVER)
        spread = nodes[0]._spread
        assert not list(spread.receive(EVE.id, Push(TOPIC, b"good"), []))
        for number in range(9000):
            assert not list(spread.receive(EVE.id, Push(TOPIC, b"j%d" % number), []))
        before = nodes[0].counts["rejected"]
        assert not list(spread.receive(EVE.id, Push(TOPIC, b"good"), []))
        assert nodes[0].counts["rejected"] == before == 9000
        assert [d.data for d in spread._topics[TOPIC].drain()] == [b"good"]

    play(story)


def test_records_are_learned_at_a_bounded_rate() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(4)
        link, _ = await world.hello(nodes[0])
        known = set(nodes[0].book._records)
        now_ms = int(world.clock.now_s() * 1000)
        crowd = [signed(Key.from_seed(bytes([i, j]) * 16), "x:1", now_ms) for i in range(1, 30) for j in range(8)]
        for first in range(0, len(crowd), 8):
            await link.send([frames.write(Known(tuple(crowd[first : first + 8])))])
        await world.pass_s(1)
        assert len(nodes[0].book) <= len(known) + 9 * 8
        assert known <= set(nodes[0].book._records)

    play(story)
