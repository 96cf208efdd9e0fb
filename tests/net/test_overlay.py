"""The overlay on in-memory wires: who stays a neighbour, how messages spread, how nodes come back."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.net.overlays import EVE, TOPIC, World, play
from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.core.types import Peer
from waggle.net import frames
from waggle.net.frames import Ping
from waggle.net.memory_wire import MemoryLink
from waggle.net.overlay import GOSSIP_S, SILENT_S, OverlayTransport
from waggle.net.requests import VISITS
from waggle.net.spread import KEPT_S
from waggle.net.transport import Ruling


def test_a_silent_neighbour_is_gone_before_the_wire_knows() -> None:
    async def story(world: World) -> None:
        await world.add(2)
        await world.hello(world.nodes[0])
        assert EVE.id in world.nodes[0].peers()
        await world.pass_s(SILENT_S + 1)
        assert EVE.id not in world.nodes[0].peers()
        assert world.nodes[0].counts["silent"] == 1
        assert world.nodes[1].id in world.nodes[0].peers()  # who is quiet but alive says so

    play(story)


def test_halves_that_were_cut_apart_find_each_other_again() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(24)
        half = {node.id for node in nodes[::2]}
        world.wires.split(half)
        await world.pass_s(20)
        await nodes[0].publish(TOPIC, b"for my half")
        await world.pass_s(2)
        assert world.heard() == [int(i % 2 == 0 and i > 0) for i in range(24)]
        world.wires.heal()
        await world.pass_s(3 * GOSSIP_S)
        await nodes[0].publish(TOPIC, b"for all")
        await world.pass_s(2)
        assert world.heard() == [0] + [1] * 23

    play(story)


def test_a_late_joiner_gets_what_is_fresh_and_not_what_is_stale() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(6, Ruling.DELIVER)
        await nodes[0].publish(TOPIC, b"old" * 1000)
        await world.pass_s(KEPT_S + 1)
        await nodes[0].publish(TOPIC, b"new" * 1000)
        await nodes[0].publish(TOPIC, b"for one" * 1000, fanout=1)
        await world.pass_s(2)
        late = world.make(77)
        inbox = late.subscribe(TOPIC, lambda sender, data: Ruling.DELIVER)
        await late.start()
        await late.join([Peer(nodes[3].id, "memory")])
        await world.pass_s(2)
        assert [delivery.data[:3] for delivery in inbox.drain()] == [b"new"]
        world.nodes.append(late)

    play(story)


@pytest.mark.parametrize("num", [8, 32])
def test_a_large_message_takes_about_its_size_of_every_uplink(num: int) -> None:
    async def story(world: World) -> None:
        nodes = await world.add(num)
        await world.pass_s(3)
        before = sum(world.wire(node).sent_bytes for node in nodes)
        for number in range(20):
            await nodes[number % num].publish(TOPIC, number.to_bytes(2, "big") * 2048)
        await world.pass_s(3)
        assert sum(world.heard()) == 20 * (num - 1)
        sent = sum(world.wire(node).sent_bytes for node in nodes) - before
        assert sent / (20 * num * 4096) < 1.2

    play(story)


def test_a_node_comes_back_without_being_told_a_way(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        nodes = await world.add(5)
        first = world.make(50, tmp_path / "book.bin")
        await first.start()
        await first.join([Peer(nodes[0].id, "memory")])
        await world.pass_s(1)
        closing = asyncio.create_task(first.close())
        await world.pass_s(2)
        await closing
        again = world.make(50, tmp_path / "book.bin")
        await again.start()
        await world.pass_s(2)
        assert len(again.peers()) >= 4
        world.nodes.append(again)

    play(story)


def test_a_request_goes_to_who_is_no_neighbour_too() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(30)
        asker = nodes[7]
        strangers: Sequence[OverlayTransport] = [n for n in nodes if n.id not in asker.peers() and n is not asker]
        known = [node for node in strangers if node.id in asker.book]
        assert known

        async def echo(caller: bytes, body: bytes) -> bytes:
            return caller + body

        known[0].serve("echo/1", echo)
        for _ in range(2):
            asking = asyncio.create_task(asker.request(known[0].id, "echo/1", b"?", timeout_s=5))
            await world.pass_s(1)
            assert await asking == asker.id + b"?"
        assert known[0].id not in asker.peers()

    play(story)


def test_who_comes_back_is_taken_though_his_old_link_looks_alive() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        old, _ = await world.hello(node)
        await world.pass_s(6)
        _, welcome = await world.hello(node)
        await world.pass_s(0.5)
        assert welcome.version
        assert node.peers() == [EVE.id]
        with pytest.raises(NetworkError):
            await old.send([frames.write(Ping())])

    play(story)


def test_the_same_message_again_takes_no_more_room() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        for _ in range(40):
            await nodes[0].publish(TOPIC, bytes(1 << 20))
        await nodes[0].publish(TOPIC, b"x" * 5000)
        await world.pass_s(1)
        assert world.heard() == [0, 2]

    play(story)


def test_a_node_that_lost_everybody_turns_to_those_it_came_through() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        world.wires.split({nodes[1].id})
        await world.pass_s(5)
        nodes[1].book.forget(nodes[0].id)  # its record has expired meanwhile
        nodes[0].book.forget(nodes[1].id)
        world.wires.heal()
        await world.pass_s(25)
        assert nodes[1].peers() == [nodes[0].id]

    play(story)


def test_the_book_is_saved_while_the_node_runs(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        file = tmp_path / "book.bin"
        node = world.make(50, file)
        await node.start()
        await node.join([Peer(nodes[0].id, "memory")])
        await world.pass_s(GOSSIP_S + 2)
        assert file.exists()  # kill -9 from now on costs nothing
        world.nodes.append(node)

    play(story)


def test_many_requests_to_strangers_at_once_are_all_answered_over_one_link_each() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(40)
        asker = world.make(90)
        await asker.start()
        now_ms = int(world.clock.now_s() * 1000)
        dialled: list[bytes] = []
        real = world.wire(asker).dial

        async def dial(peer: Peer) -> MemoryLink:
            dialled.append(peer.id)
            return await real(peer)

        asker._wire.dial = dial  # type: ignore[method-assign]

        async def echo(caller: bytes, body: bytes) -> bytes:
            await world.clock.sleep(0.5)
            return body

        for node in nodes:
            node.serve("echo/1", echo)
        asker._least = 0  # no neighbours: all are strangers
        for node in nodes:
            assert asker.book.add(node._record(), now_ms, asker._rng)
        asking = [asyncio.create_task(asker.request(n.id, "echo/1", b"?", timeout_s=9)) for n in nodes[:30] * 3]
        await world.pass_s(4)
        assert [await task for task in asking] == [b"?"] * 90
        assert len(dialled) == len(set(dialled)) == 30
        await world.pass_s(1)
        again = asyncio.create_task(asker.request(nodes[39].id, "echo/1", b"!", timeout_s=9))
        await world.pass_s(2)
        assert await again == b"!"
        assert len(asker._requests._visits) == VISITS
        world.nodes.append(asker)

    play(story)


def test_a_disk_that_refuses_the_book_stops_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        node = world.make(50, tmp_path / "missing" / "book.bin")
        await node.start()
        await node.join([Peer(nodes[0].id, "memory")])
        await world.pass_s(2 * GOSSIP_S + 5)
        assert node.book.counts["unsaved"] >= 2
        assert len(node.peers()) == 2
        world.nodes.append(node)

    play(story)


def test_a_request_under_way_when_the_node_goes_offline_is_told() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(1)
        node = world.make(50)
        await node.start()
        assert node.book.add(nodes[0]._record(), int(world.clock.now_s() * 1000), node._rng)
        node._least = 0

        async def hang(peer: Peer) -> MemoryLink:
            await asyncio.Event().wait()
            raise AssertionError

        node._wire.dial = hang  # type: ignore[method-assign]
        asking = asyncio.create_task(node.request(nodes[0].id, "echo/1", b"", timeout_s=9))
        await world.pass_s(0.5)
        closing = asyncio.create_task(node.close())
        await world.pass_s(2)
        await closing
        with pytest.raises(NetworkError, match="this node goes offline"):
            await asking

    play(story)


def test_a_neighbour_that_ends_while_it_is_written_to_ends_its_writer() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        before = len(node._tasks)
        await world.hello(node)
        neighbour = node._neighbours[EVE.id]
        sent = asyncio.Event()

        async def slow(data: Sequence[bytes]) -> None:
            await sent.wait()

        neighbour.link.send = slow  # type: ignore[method-assign]
        neighbour.post(frames.write(Ping()))
        await world.pass_s(0.2)
        node._forget(neighbour, "over")  # while a batch is under way
        sent.set()
        await world.pass_s(0.2)
        assert len(node._tasks) - len(node._meetings) == before

    play(story)


@pytest.mark.parametrize("jump_s", [600.0, -600.0])
def test_a_clock_that_is_set_ends_no_link(jump_s: float) -> None:
    class Set(FakeClock):
        wrong_s = 0.0

        def now_s(self) -> float:
            return super().now_s() + self.wrong_s

    async def story(world: World) -> None:
        world.clock = world.wires.clock = Set()
        nodes = await world.add(4)
        before = [node.peers() for node in nodes]
        world.clock.wrong_s = jump_s
        await world.pass_s(2 * SILENT_S)
        assert [node.peers() for node in nodes] == before
        await nodes[0].publish(TOPIC, b"still here")
        await world.pass_s(1)
        assert world.heard() == [0, 1, 1, 1]

    play(story)
