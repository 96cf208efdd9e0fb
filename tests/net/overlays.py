"""A swarm of overlay nodes on in-memory wires, and Eve, who has a wire and no manners."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from waggle.core.clock import FakeClock
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import frames
from waggle.net.book import Book, signed
from waggle.net.frames import PROTOCOL, Hello, Welcome
from waggle.net.memory_wire import MemoryWire, MemoryWires
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
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

    def make(self, number: int, file: Path | None = None, terms: Terms = Terms()) -> OverlayTransport:
        key = Key.from_seed(number.to_bytes(32, "big"))
        return OverlayTransport(key, self.wires.wire(key.id), self.clock, Book(key.id, file), terms)

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
        said = Hello((PROTOCOL,), bytes(32), True, signed(key, "memory", int(self.clock.now_s() * 1000)))
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
