"""The contract of `Transport`: every network that we offer passes these checks, each in the same words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.net.book import Book
from waggle.net.memory import MemoryNetwork
from waggle.net.memory_wire import MemoryWires
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
from waggle.net.transport import MAX_BODY_BYTES, Ruling, Subscription, Transport

TOPIC = b"t" * 32


class Net(Protocol):
    """What a check needs of a network under test."""

    async def nodes(self, num: int) -> list[Transport]: ...
    async def settle(self) -> None: ...
    async def kill(self, node: Transport) -> None: ...


async def met(nodes: Sequence[Transport]) -> list[Transport]:
    """The nodes, online, each through the first."""
    first = await nodes[0].start()
    for node in nodes[1:]:
        await node.start()
        await node.join([first])
    return list(nodes)


async def tick(clock: FakeClock, turn_s: float) -> None:
    """Let time pass with every turn of the loop."""
    while True:
        await asyncio.sleep(0)
        clock.advance(turn_s)


class Memory:
    """Nodes on a `MemoryNetwork`."""

    def __init__(self, latency_s: float) -> None:
        self.clock = FakeClock()
        self.net = MemoryNetwork(7, self.clock, latency_s=latency_s, degree=4)

    async def nodes(self, num: int) -> list[Transport]:
        return await met([self.net.attach(bytes([number]) * 32) for number in range(num)])

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def kill(self, node: Transport) -> None:
        self.net.kill(node.id)


@asynccontextmanager
async def memory(latency_s: float) -> AsyncIterator[Net]:
    made = Memory(latency_s)
    ticking = asyncio.create_task(tick(made.clock, 0.5))
    yield made
    ticking.cancel()
    await made.net.close()


class Overlays:
    """Nodes of the overlay on in-memory wires, few neighbours each."""

    def __init__(self, latency_s: float) -> None:
        self.clock = FakeClock()
        self.wires = MemoryWires(self.clock, latency_s)
        self.made: list[OverlayTransport] = []

    async def nodes(self, num: int) -> list[Transport]:
        for number in range(num):
            key = Key.from_seed(bytes([number]) * 32)
            wire = self.wires.wire(key.id)
            self.made.append(OverlayTransport(key, wire, self.clock, Book(key.id), Terms(least=3, most=4)))
        nodes = await met(self.made)
        await self.settle()
        return nodes

    async def settle(self) -> None:
        for _ in range(500):
            await asyncio.sleep(0)

    async def kill(self, node: Transport) -> None:
        await self.wires.open[node.id].close()
        await self.settle()


@asynccontextmanager
async def overlay(latency_s: float) -> AsyncIterator[Net]:
    made = Overlays(latency_s)
    ticking = asyncio.create_task(tick(made.clock, 0.02))
    yield made
    for node in made.made:
        await node.close()
    ticking.cancel()


NETWORKS = {
    "memory": lambda: memory(0.0),
    "slow-memory": lambda: memory(0.2),
    "overlay": lambda: overlay(0.0),
    "slow-overlay": lambda: overlay(0.2),
}


def everything(ruling: Ruling) -> Callable[[bytes, bytes], Ruling]:
    return lambda sender, data: ruling


def listen(nodes: list[Transport], ruling: Ruling) -> list[Subscription]:
    return [node.subscribe(TOPIC, everything(ruling)) for node in nodes]


async def each_once_and_not_my_own(net: Net) -> None:
    nodes = await net.nodes(9)
    inboxes = listen(nodes, Ruling.FORWARD)
    sent = [bytes([number]) * size for number, size in enumerate((1, 4096, 65_536, 1 << 20))]
    for data in sent:
        assert await nodes[2].publish(TOPIC, data) == len(nodes[2].peers())
    await net.settle()
    for number, inbox in enumerate(inboxes):
        assert sorted(d.data for d in inbox.drain()) == ([] if number == 2 else sorted(sent))


async def delivered_goes_no_further(net: Net) -> None:
    nodes = await net.nodes(9)
    inboxes, neighbours = listen(nodes, Ruling.DELIVER), set(nodes[0].peers())
    await nodes[0].publish(TOPIC, b"a round")
    await net.settle()
    heard = {node.id for node, inbox in zip(nodes, inboxes, strict=True) if inbox.drain()}
    assert heard == neighbours
    assert len(heard) < 8


async def rejected_is_not_read_and_goes_no_further(net: Net) -> None:
    nodes = await net.nodes(9)
    inboxes, neighbours = listen(nodes, Ruling.REJECT), nodes[0].peers()
    await nodes[0].publish(TOPIC, b"junk")
    await net.settle()
    assert not any(inbox.drain() for inbox in inboxes)
    assert sum(node.counts["rejected"] for node in nodes) == len(neighbours)


async def a_validator_knows_the_neighbour(net: Net) -> None:
    nodes = await net.nodes(2)
    asked: list[tuple[bytes, bytes]] = []
    nodes[1].subscribe(TOPIC, lambda sender, data: asked.append((sender, data)) or Ruling.REJECT)
    await nodes[0].publish(TOPIC, b"hello")
    await net.settle()
    assert asked == [(nodes[0].id, b"hello")]


async def fanout_bounds_a_push(net: Net) -> None:
    nodes = await net.nodes(9)
    inboxes = listen(nodes, Ruling.DELIVER)
    assert len(nodes[0].peers()) > 2
    assert await nodes[0].publish(TOPIC, b"few", fanout=2) == 2
    await net.settle()
    assert sum(len(inbox.drain()) for inbox in inboxes) == 2


async def other_topics_are_not_heard(net: Net) -> None:
    nodes = await net.nodes(3)
    inboxes = listen(nodes, Ruling.FORWARD)
    await nodes[0].publish(b"another" * 4, b"x")
    await net.settle()
    assert not any(inbox.drain() for inbox in inboxes)


async def the_view_is_bounded_and_mutual(net: Net) -> None:
    nodes = await net.nodes(20)
    while not all(node.peers() for node in nodes):  # one that found everybody full asks again after a rest
        await net.settle()
    views = {node.id: node.peers() for node in nodes}
    for peer, view in views.items():
        assert 1 <= len(view) <= 10
        assert peer not in view
        assert len(set(view)) == len(view)
        assert all(peer in views[other] for other in view)


async def too_large_is_refused(net: Net) -> None:
    nodes = await net.nodes(2)
    with pytest.raises(NetworkError, match="too large to publish"):
        await nodes[0].publish(TOPIC, bytes(nodes[0].max_message + 1))


async def a_request_is_answered_and_the_caller_known(net: Net) -> None:
    nodes = await net.nodes(3)

    async def answer(caller: bytes, body: bytes) -> bytes:
        return caller + body * 2

    nodes[2].serve("echo/1", answer)
    big = bytes(range(256)) * 256
    assert len(big) == MAX_BODY_BYTES
    for body in (b"", b"x", big):
        reply = await nodes[0].request(nodes[2].id, "echo/1", body, timeout_s=9)
        assert reply == nodes[0].id + body * 2
    with pytest.raises(NetworkError, match="a request of 65537 bytes; at most 65536"):
        await nodes[0].request(nodes[2].id, "echo/1", big + b"x", timeout_s=9)


async def what_is_not_spoken_or_fails_is_an_error(net: Net) -> None:
    nodes = await net.nodes(2)

    async def broken(caller: bytes, body: bytes) -> bytes:
        raise ValueError("the shelf is empty")

    nodes[1].serve("broken/1", broken)
    with pytest.raises(NetworkError, match="does not speak nothing/1"):
        await nodes[0].request(nodes[1].id, "nothing/1", b"", timeout_s=9)
    with pytest.raises(NetworkError, match="failed to answer broken/1: the shelf is empty"):
        await nodes[0].request(nodes[1].id, "broken/1", b"", timeout_s=9)


async def a_silent_peer_costs_its_deadline(net: Net) -> None:
    nodes = await net.nodes(2)

    async def silent(caller: bytes, body: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    nodes[1].serve("silent/1", silent)
    with pytest.raises(NetworkError, match=r"within 3 s while waiting for .* to answer silent/1"):
        await nodes[0].request(nodes[1].id, "silent/1", b"", timeout_s=3)


async def an_over_long_reply_is_refused(net: Net) -> None:
    nodes = await net.nodes(2)

    async def flood(caller: bytes, body: bytes) -> bytes:
        return bytes(1001)

    nodes[1].serve("flood/1", flood)
    assert len(await nodes[0].request(nodes[1].id, "flood/1", b"", timeout_s=9, max_reply_bytes=1001)) == 1001
    with pytest.raises(NetworkError, match="1001 bytes; at most 1000"):
        await nodes[0].request(nodes[1].id, "flood/1", b"", timeout_s=9, max_reply_bytes=1000)


async def the_dead_are_gone_and_the_others_go_on(net: Net) -> None:
    nodes = await net.nodes(9)
    inboxes = listen(nodes, Ruling.FORWARD)
    await net.kill(nodes[0])  # the peer through which everybody joined
    await net.settle()
    with pytest.raises(NetworkError, match="cannot be reached"):
        await nodes[1].request(nodes[0].id, "echo/1", b"", timeout_s=9)
    assert all(nodes[0].id not in node.peers() for node in nodes[1:])
    await nodes[1].publish(TOPIC, b"still here")
    await net.settle()
    assert [len(inbox.drain()) for inbox in inboxes] == [0, 0, 1, 1, 1, 1, 1, 1, 1]


async def nobody_to_join_is_said(net: Net) -> None:
    nodes = await net.nodes(2)
    address = await nodes[1].start()
    await net.kill(nodes[1])
    for bootstrap in ([], [address]):
        with pytest.raises(NetworkError, match="none of the peers to join through"):
            await nodes[0].join(bootstrap)


async def closed_ends_and_may_start_again(net: Net) -> None:
    nodes = await net.nodes(3)
    (inbox,) = listen(nodes[:1], Ruling.DELIVER)
    await nodes[1].publish(TOPIC, b"last")
    await net.settle()
    await nodes[0].close()
    assert [d.data async for d in inbox] == [b"last"]
    with pytest.raises(NetworkError, match="not online"):
        await nodes[0].publish(TOPIC, b"x")
    address = await nodes[1].start()
    await nodes[0].start()
    await nodes[0].join([address])
    (inbox,) = listen(nodes[:1], Ruling.DELIVER)
    await nodes[1].publish(TOPIC, b"again")
    assert (await anext(inbox)).data == b"again"


async def traffic_is_counted(net: Net) -> None:
    nodes = await net.nodes(2)
    listen(nodes, Ruling.DELIVER)

    async def answer(caller: bytes, body: bytes) -> bytes:
        return body * 3

    nodes[1].serve("echo/1", answer)
    await nodes[0].publish(TOPIC, bytes(10))
    await nodes[0].request(nodes[1].id, "echo/1", bytes(5), timeout_s=9)
    await net.settle()
    for node, sent, received in ((nodes[0], 15, 15), (nodes[1], 15, 15)):
        assert (node.counts["sent_bytes"], node.counts["received_bytes"]) == (sent, received)


CHECKS: list[Callable[[Net], Awaitable[None]]] = [
    each_once_and_not_my_own,
    delivered_goes_no_further,
    rejected_is_not_read_and_goes_no_further,
    a_validator_knows_the_neighbour,
    fanout_bounds_a_push,
    other_topics_are_not_heard,
    the_view_is_bounded_and_mutual,
    too_large_is_refused,
    a_request_is_answered_and_the_caller_known,
    what_is_not_spoken_or_fails_is_an_error,
    a_silent_peer_costs_its_deadline,
    an_over_long_reply_is_refused,
    the_dead_are_gone_and_the_others_go_on,
    nobody_to_join_is_said,
    closed_ends_and_may_start_again,
    traffic_is_counted,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("network", NETWORKS)
def test_contract(network: str, check: Callable[[Net], Awaitable[None]]) -> None:
    async def run() -> None:
        async with NETWORKS[network]() as net:
            await check(net)

    asyncio.run(run())
