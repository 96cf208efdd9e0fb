"""The in-memory network's own settings: latency, loss, partitions, death, bounds; and that it is repeatable."""

import asyncio
import time

import pytest

from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.net.memory import REMEMBERED, MemoryNetwork, MemoryTransport
from waggle.net.transport import QUEUE, Delivery, Ruling, Subscription

TOPIC = b"t" * 32


def peer(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def joined(net: MemoryNetwork, num: int) -> tuple[list[MemoryTransport], list[Subscription]]:
    nodes = [net.attach(peer(number)) for number in range(num)]
    first = await nodes[0].start()
    for node in nodes[1:]:
        await node.start()
        await node.join([first])
    return nodes, [node.subscribe(TOPIC, lambda sender, data: Ruling.FORWARD) for node in nodes]


def test_no_latency_means_there_when_publish_returns() -> None:
    async def run() -> None:
        nodes, inboxes = await joined(MemoryNetwork(1, FakeClock(), degree=2), 12)
        await nodes[0].publish(TOPIC, b"now")
        assert [len(inbox.drain()) for inbox in inboxes] == [0] + [1] * 11

    asyncio.run(run())


def test_latency_follows_the_clock() -> None:
    async def run() -> None:
        clock = FakeClock()
        net = MemoryNetwork(1, clock, latency_s=0.5)
        nodes, inboxes = await joined(net, 2)
        await nodes[0].publish(TOPIC, b"later")
        for passed_s, arrived in ((0.4, 0), (0.05, 0), (0.1, 1)):
            clock.advance(passed_s)
            net.pump()
            assert len(inboxes[1].drain()) == arrived
        await nodes[0].publish(TOPIC, b"by itself")
        await asyncio.sleep(0)
        clock.advance(0.5)
        assert await anext(inboxes[1]) == Delivery(nodes[0].id, b"by itself")
        await net.close()

    asyncio.run(run())


def test_a_request_takes_two_latencies_of_its_deadline() -> None:
    async def run(timeout_s: float) -> bytes:
        clock = FakeClock()
        nodes, _ = await joined(MemoryNetwork(1, clock, latency_s=0.5), 2)

        async def answer(caller: bytes, body: bytes) -> bytes:
            return body

        nodes[1].serve("echo", answer)
        asking = asyncio.create_task(nodes[0].request(nodes[1].id, "echo", b"x", timeout_s=timeout_s))
        for _ in range(12):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.advance(0.1)
        return await asking

    assert asyncio.run(run(1.1)) == b"x"
    with pytest.raises(NetworkError, match=r"within 0\.9 s"):
        asyncio.run(run(0.9))


def test_loss_is_seeded_counted_and_near_its_rate() -> None:
    async def run(seed: int) -> list[bytes]:
        nodes, inboxes = await joined(MemoryNetwork(seed, FakeClock(), loss=0.3), 2)
        for number in range(500):
            await nodes[0].publish(TOPIC, number.to_bytes(4, "big"))
        arrived = [delivery.data for delivery in inboxes[1].drain()]
        assert nodes[1].counts["lost"] == 500 - len(arrived)
        return arrived

    first = asyncio.run(run(1))
    assert 300 < len(first) < 400
    assert asyncio.run(run(1)) == first
    assert asyncio.run(run(2)) != first


def test_split_and_heal() -> None:
    async def run() -> None:
        net = MemoryNetwork(1, FakeClock())
        nodes, inboxes = await joined(net, 5)
        net.split({peer(0), peer(1)}, {peer(2)})
        assert [node.peers() for node in nodes] == [[peer(1)], [peer(0)], [], [peer(4)], [peer(3)]]
        await nodes[0].publish(TOPIC, b"a")
        assert [len(inbox.drain()) for inbox in inboxes] == [0, 1, 0, 0, 0]
        with pytest.raises(NetworkError, match="cannot be reached"):
            await nodes[0].request(peer(2), "echo", b"", timeout_s=1)
        net.heal()
        await nodes[0].publish(TOPIC, b"b")
        assert [len(inbox.drain()) for inbox in inboxes] == [0, 1, 1, 1, 1]

    asyncio.run(run())


def test_who_leaves_changes_the_neighbours_of_his_neighbours_alone() -> None:
    async def run() -> None:
        net = MemoryNetwork(1, FakeClock(), degree=4)
        nodes, _ = await joined(net, 60)
        before = {node.id: set(node.peers()) for node in nodes}
        net.kill(peer(7))
        after = {node.id: set(node.peers()) for node in nodes if node.id != peer(7)}
        changed = {one for one, view in after.items() if view != before[one]}
        assert changed == before[peer(7)]
        assert all(len(view) <= 4 for view in after.values())

    asyncio.run(run())


def test_what_is_under_way_is_lost_with_the_link() -> None:
    async def run() -> None:
        clock = FakeClock()
        net = MemoryNetwork(1, clock, latency_s=1.0)
        nodes, inboxes = await joined(net, 2)
        await nodes[0].publish(TOPIC, b"cut off")
        net.split({peer(0)})
        clock.advance(2.0)
        net.pump()
        assert inboxes[1].drain() == []
        assert nodes[1].counts["lost"] == 1
        await net.close()

    asyncio.run(run())


def test_islands_meet_only_by_joining() -> None:
    async def run() -> None:
        net = MemoryNetwork(1, FakeClock())
        nodes = [net.attach(peer(number)) for number in range(4)]
        at = [await node.start() for node in nodes]
        assert [node.peers() for node in nodes] == [[]] * 4
        await nodes[1].join([at[0]])
        await nodes[3].join([at[2]])
        assert nodes[0].peers() == [peer(1)]
        assert nodes[2].peers() == [peer(3)]
        await nodes[3].join([at[1]])
        assert all(len(node.peers()) == 3 for node in nodes)

    asyncio.run(run())


def test_one_key_serves_one_node_at_a_time() -> None:
    async def run() -> None:
        net = MemoryNetwork(1, FakeClock())
        await net.attach(peer(0)).start()
        with pytest.raises(NetworkError, match="already online"):
            await net.attach(peer(0)).start()
        net.kill(peer(0))
        await net.attach(peer(0)).start()

    asyncio.run(run())


def test_a_full_inbox_drops_its_oldest() -> None:
    async def run() -> None:
        nodes, inboxes = await joined(MemoryNetwork(1, FakeClock()), 2)
        for number in range(QUEUE + 10):
            await nodes[0].publish(TOPIC, number.to_bytes(4, "big"))
        arrived = inboxes[1].drain()
        assert len(arrived) == QUEUE
        assert arrived[0].data == (10).to_bytes(4, "big")
        assert nodes[1].counts["dropped"] == inboxes[1].num_dropped == 10

    asyncio.run(run())


def test_messages_under_way_are_bounded() -> None:
    async def run() -> None:
        clock = FakeClock()
        net = MemoryNetwork(1, clock, latency_s=1.0, max_in_flight=5)
        nodes, inboxes = await joined(net, 2)
        for number in range(8):
            await nodes[0].publish(TOPIC, bytes([number]))
        clock.advance(1.0)
        net.pump()
        assert [delivery.data for delivery in inboxes[1].drain()] == [bytes([n]) for n in range(3, 8)]
        assert nodes[1].counts["dropped"] == 3
        await net.close()

    asyncio.run(run())


def test_what_is_remembered_is_bounded() -> None:
    async def run() -> None:
        nodes, inboxes = await joined(MemoryNetwork(1, FakeClock()), 2)
        for number in range(REMEMBERED + 1):
            await nodes[0].publish(TOPIC, number.to_bytes(4, "big"))
            inboxes[1].drain()
        await nodes[0].publish(TOPIC, (1).to_bytes(4, "big"))
        assert inboxes[1].drain() == []
        await nodes[0].publish(TOPIC, (0).to_bytes(4, "big"))
        assert len(inboxes[1].drain()) == 1

    asyncio.run(run())


@pytest.mark.parametrize(("num", "degree"), [(2, 8), (9, 8), (10, 8), (64, 8), (200, 4), (30, 2)])
def test_everybody_is_connected_within_bounds(num: int, degree: int) -> None:
    async def run() -> None:
        nodes, _ = await joined(MemoryNetwork(3, FakeClock(), degree=degree), num)
        views = {node.id: node.peers() for node in nodes}
        assert max(map(len, views.values())) <= degree
        assert num > degree + 1 or min(map(len, views.values())) == num - 1
        found, edge = {peer(0)}, [peer(0)]
        while edge:
            new = [other for other in views[edge.pop()] if other not in found]
            found.update(new)
            edge += new
        assert len(found) == num

    asyncio.run(run())


def test_a_failing_validator_is_not_hidden_and_breaks_nothing() -> None:
    async def run() -> None:
        nodes, inboxes = await joined(MemoryNetwork(1, FakeClock()), 2)

        def broken(sender: bytes, data: bytes) -> Ruling:
            raise ZeroDivisionError

        nodes[1].subscribe(TOPIC, broken)
        with pytest.raises(ZeroDivisionError):
            await nodes[0].publish(TOPIC, b"x")
        await nodes[1].publish(TOPIC, b"y")
        assert len(inboxes[0].drain()) == 1

    asyncio.run(run())


@pytest.mark.slow
def test_64_nodes_200_rounds_are_cheap() -> None:
    async def run() -> None:
        nodes, inboxes = await joined(MemoryNetwork(1, FakeClock()), 64)
        inboxes = [node.subscribe(TOPIC, lambda sender, data: Ruling.DELIVER) for node in nodes]
        for number in range(200):
            for node in nodes:
                await node.publish(TOPIC, node.id + bytes([number]) * 300, 8)
        assert sum(len(inbox.drain()) + inbox.num_dropped for inbox in inboxes) >= 64 * 200 * 7

    started = time.process_time()
    asyncio.run(run())
    assert time.process_time() - started < 8.0
