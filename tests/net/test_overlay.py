"""The overlay on in-memory wires: who stays a neighbour, how messages spread, what strangers can and cannot do."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import frames
from waggle.net.book import Book, signed
from waggle.net.frames import PROTOCOL, Hello, Ping, Push, Welcome
from waggle.net.memory_wire import MemoryWire, MemoryWires
from waggle.net.overlay import GOSSIP_S, SILENT_S, OverlayTransport
from waggle.net.spread import KEPT_S, WANT_S, message_id
from waggle.net.transport import Ruling, Subscription
from waggle.net.wire import Link, Reply

TOPIC = b"t" * 32
EVE = Key.from_seed(b"e" * 32)


class World:
    """A swarm whose time passes only in `pass_s`."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.wires = MemoryWires(self.clock)
        self.nodes: list[OverlayTransport] = []
        self.inboxes: list[Subscription] = []

    def make(self, number: int, file: Path | None = None) -> OverlayTransport:
        key = Key.from_seed(number.to_bytes(32, "big"))
        return OverlayTransport(key, self.wires.wire(key.id), self.clock, Book(key.id, file))

    async def add(self, num: int, ruling: Ruling = Ruling.FORWARD) -> list[OverlayTransport]:
        """More nodes, each through the first."""
        added = [self.make(number) for number in range(len(self.nodes), len(self.nodes) + num)]
        for node in added:
            await node.start()
            if self.nodes:
                await node.join([Peer(self.nodes[0].id, "memory")])
            self.nodes.append(node)
            self.inboxes.append(node.subscribe(TOPIC, lambda sender, data: ruling))
        await self.pass_s(2)
        return added

    async def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds * 50)):
            for _ in range(4):
                await asyncio.sleep(0)
            self.clock.advance(0.02)

    def heard(self) -> list[int]:
        return [len(inbox.drain()) for inbox in self.inboxes]

    def wire(self, node: OverlayTransport) -> MemoryWire:
        return self.wires.open[node.id]

    async def eve(self, key: Key = EVE) -> tuple[MemoryWire, list[Link]]:
        """A stranger on the wire, without an overlay, and the links that others dial to her."""
        wire, links = self.wires.wire(key.id), []

        async def nothing(caller: bytes, body: bytes) -> Reply:
            return Reply(False, b"")

        await wire.open(links.append, nothing)
        return wire, links

    async def hello(self, node: OverlayTransport, key: Key = EVE, **changes: object) -> tuple[Link, Welcome]:
        """Eve introduces herself to a node, properly but for the changes."""
        wire, _ = await self.eve(key)
        link = await wire.dial(Peer(node.id, "memory"))
        said = Hello(PROTOCOL, True, signed(key, "memory", int(self.clock.now_s() * 1000)))
        await link.send([frames.write(replace(said, **changes))])
        welcome = frames.read(await link.receive())
        assert isinstance(welcome, Welcome)
        return link, welcome


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await story(world)
        for node in world.nodes:
            closing = asyncio.create_task(node.close())
            await world.pass_s(2)
            await closing

    asyncio.run(run())


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
        _, welcome = await world.hello(node, protocol=PROTOCOL + 1)
        assert (welcome.accepted, welcome.protocol) == (False, PROTOCOL)
        await world.pass_s(1)
        assert node.peers() == []
        assert node.counts["other-protocol"] == 1

    play(story)


def test_nobody_introduces_himself_as_somebody_else() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        wire, _ = await world.eve()
        link = await wire.dial(Peer(nodes[0].id, "memory"))
        record = nodes[0].book.sample(1, nodes[0]._rng)[0]
        assert record.peer == nodes[1].id
        await link.send([frames.write(Hello(PROTOCOL, True, record))])
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


def test_who_does_not_give_what_he_has_is_passed_over_for_another() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        link, _ = await world.hello(nodes[0])
        data = b"x" * 5000
        name = frames.Have(message_id(Push(TOPIC, data)))
        await link.send([frames.write(name)])  # Eve has it, she says
        await world.pass_s(0.5)
        await nodes[1].publish(TOPIC, data)
        await world.pass_s(0.5)
        assert world.heard() == [0, 0]
        await world.pass_s(WANT_S + 1)
        assert world.heard() == [1, 0]

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
