"""The transport's contract on real connections, run as a program in a network of its own; prints JSON.

Not collected by pytest: `test_iroh.py` starts it, since a namespace has to be entered before there are threads.
"""

import asyncio
import contextlib
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import iroh
import pytest

from tests.net.test_contract import CHECKS, TOPIC, Net, met
from waggle.core.clock import SystemClock
from waggle.core.codec import encode
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import overlay, reach, requests
from waggle.net.allowance import Allowance
from waggle.net.book import Book
from waggle.net.frames import Request
from waggle.net.iroh import IrohWire
from waggle.net.iroh_link import MAX_ASKED, IrohLink
from waggle.net.namespace import loopback_only
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
from waggle.net.thread import ThreadTransport
from waggle.net.transport import Ruling, Transport
from waggle.net.wire import MAX_REQUEST_BYTES, Reply

NO_NAMESPACE = 3
QUIET_S = 0.2
"""The network is settled when nothing was counted for so long, which is longer than between two looks."""
overlay.TICK_S = 0.1


class Real:
    """Nodes on loopback."""

    def __init__(self) -> None:
        self.made: list[OverlayTransport] = []
        self.wires: dict[bytes, IrohWire] = {}

    async def nodes(self, num: int) -> list[Transport]:
        for number in range(num):
            key = Key.from_seed(bytes([number + 1]) * 32)
            self.wires[key.id] = IrohWire(key, ("127.0.0.1:0", "[::1]:0"))
            self.made.append(
                OverlayTransport(key, self.wires[key.id], SystemClock(), Book(key.id), Terms(least=3, most=4))
            )
        nodes = await met(self.made)
        await self.settle()
        return nodes

    def state(self) -> object:
        return [(node.counts.copy(), node.peers()) for node in self.made]

    async def settle(self) -> None:
        last, since_s = self.state(), time.monotonic()
        while time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(0.01)
            if (now := self.state()) != last:
                last, since_s = now, time.monotonic()

    async def kill(self, node: Transport) -> None:
        await self.wires[node.id].close()
        while any(node.id in other.peers() for other in self.made if other is not node):
            await asyncio.sleep(0.01)
        await self.settle()


async def a_fixed_port_can_be_taken_again(net: Net) -> None:
    key = Key.from_seed(b"p" * 32)
    wire = IrohWire(key, ("127.0.0.1:0", "[::1]:0"))
    node = OverlayTransport(key, wire, SystemClock(), Book(key.id))
    first = await node.start()
    await node.close()
    ports = tuple(first.address.split(","))
    for _ in range(2):
        again = OverlayTransport(key, IrohWire(key, ports), SystemClock(), Book(key.id))
        assert (await again.start()).address == first.address
        with pytest.raises(NetworkError, match="cannot listen on"):
            await OverlayTransport(key, IrohWire(key, ports), SystemClock(), Book(key.id)).start()
        await again.close()


async def loopback_means_loopback(net: Net) -> None:
    node = (await net.nodes(1))[0]
    bound = net.wires[node.id]._endpoint.bound_sockets()  # type: ignore[attr-defined]
    assert all(address.startswith(("127.0.0.1:", "[::1]:")) for address in bound), bound


async def what_is_no_address_is_said(net: Net) -> None:
    node = (await net.nodes(1))[0]
    for peer in (Peer(b"x" * 32, "junk"), Peer(bytes(31) + b"\x02", "127.0.0.1:9"), Peer(b"y" * 32, "127.0.0.1:99999")):
        with pytest.raises(NetworkError, match="none of the peers"):
            await node.join([peer])


async def one_way_streams_end_the_connection(net: Net) -> None:
    one, other = await net.nodes(2)
    link = one._link_of(other.id)  # type: ignore[attr-defined]
    stream = await link._connection.open_uni()
    await stream.write_all(b"to be kept by nobody")
    while one._link_of(other.id) is link:  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)


async def a_caller_who_is_busy_keeps_nobody_waiting(net: Net) -> None:
    made = [Key.from_seed(seed * 32) for seed in (b"m", b"n")]
    one, other = (
        ThreadTransport(OverlayTransport(key, IrohWire(key, ("127.0.0.1:0", "[::1]:0")), SystemClock(), Book(key.id)))
        for key in made
    )

    async def answer(caller: bytes, body: bytes) -> bytes:
        return caller + body

    one.serve("echo/1", answer)
    inbox = one.subscribe(TOPIC, lambda sender, data: Ruling.DELIVER)
    me = await one.start()
    await other.start()
    await other.join([me])
    assert other._loop is not None
    asked = asyncio.run_coroutine_threadsafe(other._inner.request(one.id, "echo/1", b"?", timeout_s=5), other._loop)
    assert asked.result(5) == other.id + b"?"  # this loop stands still meanwhile, as in a training step
    told = asyncio.run_coroutine_threadsafe(other._inner.publish(TOPIC, b"news"), other._loop)
    assert told.result(5) == 1
    while not (heard := inbox.drain()):
        pass
    assert [delivery.data for delivery in heard] == [b"news"]
    assert one.peers() == [other.id]
    for transport in (other, one):
        await transport.close()
        await transport.close()
    with pytest.raises(NetworkError, match="is not online"):
        await one.publish(TOPIC, b"x")
    assert (await one.start()).id == one.id  # once more
    await one.close()


async def a_peer_dials_back_where_nobody_has_talked(net: Net) -> None:
    one, other = await net.nodes(2)
    waiting, silent = Key.from_seed(b"w" * 32), Key.from_seed(b"s" * 32)
    wire = IrohWire(waiting, ("127.0.0.1:0", "[::1]:0"))

    async def nothing(caller: bytes, body: bytes) -> Reply:
        return Reply(False, b"")

    where = await wire.open(lambda link: None, nothing)
    host = net.wires[other.id].host_of(one.id)  # type: ignore[attr-defined]
    ports = dict(address.rsplit(":", 1) for address in where.split(","))
    for peer, reached in ((waiting, True), (silent, False)):
        body = reach.ask_to_dial(peer.id, int(ports[host]))
        reply = await one.request(other.id, reach.PROTO, body, timeout_s=9)
        assert (reply == b"") is reached, reply
    await wire.close()


async def what_goes_over_the_wire_is_counted_and_held_to_its_pace(net: Net) -> None:
    one, other = await net.nodes(2)

    async def answer(caller: bytes, body: bytes) -> bytes:
        return bytes(30_000)

    other.serve("big/1", answer)
    paces = [net.wires[node.id].pace for node in (one, other)]  # type: ignore[attr-defined]
    before = [pace.meter() for pace in paces]
    paces[1]._bytes_per_s, paces[1]._line = 20_000.0, Allowance(20_000.0, 20_000.0, SystemClock())
    started_s = time.monotonic()
    await one.request(other.id, "big/1", b"", timeout_s=9)
    assert time.monotonic() - started_s > 0.4  # a second's worth at once, half a second's after that
    carried = [pace.meter() - was for pace, was in zip(paces, before, strict=True)]
    assert all(30_000 < num < 40_000 for num in carried), carried
    wire = net.wires[one.id]  # type: ignore[attr-defined]
    link = wire._links[other.id]
    link.close("to see that nothing is forgotten")
    while link in wire._live:
        await asyncio.sleep(0.01)
    assert all(pace.meter() - was >= num for pace, was, num in zip(paces, before, carried, strict=True))


@contextlib.asynccontextmanager
async def stranger(victim: Transport) -> AsyncIterator[IrohLink]:
    """A link of somebody who has said nothing yet."""
    wire = IrohWire(Key.generate(), ("127.0.0.1:0", "[::1]:0"))

    async def nothing(caller: bytes, body: bytes) -> Reply:
        return Reply(False, b"")

    await wire.open(lambda link: None, nothing)
    link = await wire.dial(await victim.start())
    assert isinstance(link, IrohLink)
    yield link
    await wire.close()


async def who_asks_too_much_is_cut_off_and_kept_out(net: Net) -> None:
    (victim,) = await net.nodes(1)
    whole = encode(Request("waggle/none/1", b""))
    greed: dict[str, Sequence[bytes]] = {
        "too-many-requests": [b"R" + whole[:-1]] * (MAX_ASKED + 1),  # none of them comes to an end
        "too-large": [b"R" + bytes(MAX_REQUEST_BYTES + 1)],
        "no-request": [b"R" + whole + b"!"],
    }
    for reason, asked in greed.items():
        async with stranger(victim) as link:
            streams = [await link._connection.open_bi() for _ in asked]
            with contextlib.suppress(iroh.IrohError):  # it may be cut off already
                for stream, data in zip(streams, asked, strict=True):
                    await stream.send().write_all(data)
                    if reason != "too-many-requests":
                        await stream.send().finish()
            await link._connection.closed()
            assert victim.counts[reason] == 1, victim.counts  # type: ignore[attr-defined]
    assert not victim.peers()


async def a_port_can_be_taken_again_though_a_link_was_open(net: Net) -> None:
    (victim,) = await net.nodes(1)
    wire = net.wires[victim.id]  # type: ignore[attr-defined]
    async with stranger(victim):
        while not wire._live:
            await asyncio.sleep(0.01)
        before = wire.wire_bytes()
        wire._bind = tuple(wire.address().split(","))
        await victim.close()
        assert wire.wire_bytes() >= before > 0
        assert (await victim.start()).address == ",".join(wire._bind)


async def requests_end_with_their_link(net: Net) -> None:
    (victim,) = await net.nodes(1)
    wire = net.wires[victim.id]  # type: ignore[attr-defined]
    async with stranger(victim) as link:
        streams = [await link._connection.open_bi() for _ in range(20)]
        for stream in streams:
            await stream.send().write_all(b"R")
        while not (here := next(iter(wire._live), None)) or here.num_asked < 20:
            await asyncio.sleep(0.01)
    while here.num_asked:
        await asyncio.sleep(0.01)


async def a_peer_is_where_it_is_and_not_where_it_says(net: Net) -> None:
    (victim,) = await net.nodes(1)
    wire = IrohWire(Key.generate(), ("127.0.0.1:0",))
    me = await victim.start()
    await wire.open(lambda link: None, lambda caller, body: asyncio.sleep(0, Reply(False, b"")))
    link = await wire.dial(Peer(me.id, f"192.0.2.9:1,{me.address}"))
    assert link.origin == "127.0.0.1"
    await wire.close()


REAL = [
    a_port_can_be_taken_again_though_a_link_was_open,
    requests_end_with_their_link,
    a_peer_is_where_it_is_and_not_where_it_says,
    who_asks_too_much_is_cut_off_and_kept_out,
    a_caller_who_is_busy_keeps_nobody_waiting,
    a_peer_dials_back_where_nobody_has_talked,
    what_goes_over_the_wire_is_counted_and_held_to_its_pace,
    a_fixed_port_can_be_taken_again,
    loopback_means_loopback,
    what_is_no_address_is_said,
    one_way_streams_end_the_connection,
]


async def run(check: Callable[[Net], Awaitable[None]]) -> str:
    """What went wrong, or nothing."""
    net = Real()
    try:
        async with asyncio.timeout(60):
            await check(net)
    except BaseException:
        return traceback.format_exc()
    finally:
        await asyncio.gather(*(node.close() for node in net.made))
    return ""


def main() -> int:
    if not loopback_only():
        return NO_NAMESPACE
    requests.DIAL_S = reach.DIAL_BACK_S = 1.0
    print(json.dumps({check.__name__: asyncio.run(run(check)) for check in (*CHECKS, *REAL)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
