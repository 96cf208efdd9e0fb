"""The transport's contract on real connections, run as a program in a network of its own; prints JSON.

Not collected by pytest: `test_iroh.py` starts it, since a namespace has to be entered before there are threads.
"""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

import pytest

from tests.net.test_contract import CHECKS, Net, met
from waggle.core.clock import SystemClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import requests
from waggle.net.book import Book
from waggle.net.iroh import IrohWire
from waggle.net.namespace import loopback_only
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
from waggle.net.transport import Transport

NO_NAMESPACE = 3
QUIET_S = 0.15
"""The network is settled when nothing was counted for so long."""


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


REAL = [
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
    requests.DIAL_S = 1.0
    print(json.dumps({check.__name__: asyncio.run(run(check)) for check in (*CHECKS, *REAL)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
