"""Whether peers can be reached from this machine, and this machine by peers: `waggle doctor --reach`.

Two endpoints with keys of the moment: one asks, and peers are asked to dial the other, with which nobody has talked.
A running node is not touched; its port is in use, so another one is tried then, which tells of a firewall but not of a
port that a router forwards.
"""

import asyncio
import ipaddress
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from waggle.core.clock import SystemClock
from waggle.core.codec import encode
from waggle.core.config import NetConfig
from waggle.core.errors import NetworkError, printable
from waggle.core.keys import Key, peer_name
from waggle.core.rng import rng_for
from waggle.core.types import Peer
from waggle.net import reach
from waggle.net.book import Book
from waggle.net.deadline import deadline
from waggle.net.frames import Request
from waggle.net.iroh import ANYWHERE, IrohWire
from waggle.net.requests import DIAL_S, MEMBERS_ONLY
from waggle.net.transport import read_address
from waggle.net.wire import Link, Reply
from waggle.node.doctor import Finding
from waggle.node.place import bootstrap_of, usual_ports
from waggle.node.runfolder import RunFolder, is_locked, node_folders
from waggle.swarm.charter import PREFIX, read_ticket

MAX_PEERS = 8


def examine_reach(where: str) -> list[Finding]:
    """Try the peers of a ticket or of a run folder.

    Raises:
        ConfigError: neither a ticket nor a run folder.
    """
    if where.startswith(PREFIX):
        peers, key, net = [read_address(one) for one in read_ticket(where).addresses], Key.generate(), NetConfig()
    else:
        folder = RunFolder(node_folders(Path(where))[0])
        peers, net = _known(folder), folder.config().net
        key = Key.generate() if is_locked(folder.path) else Key.load(folder.key_file)
    if not peers:
        return [Finding("no peer is known there", "take a ticket that names one: a running node's folder holds it")]
    return asyncio.run(_try(peers[:MAX_PEERS], key, net))


def _known(folder: RunFolder) -> list[Peer]:
    """Through whom the node came, and whom it has met."""
    clock = SystemClock()
    book, rng = Book(b"", folder.book_file), rng_for(0, "reach")
    book.load(int(clock.now_s() * 1000), rng)
    met = book.draw(MAX_PEERS // 2, rng, clock.now_s())
    came = [peer for peer in bootstrap_of(folder) if peer.id not in {p.id for p in met}]
    return met + came


async def _nothing(caller: bytes, body: bytes) -> Reply:
    return Reply(False, b"only looking")


async def _try(peers: Sequence[Peer], key: Key, net: NetConfig) -> list[Finding]:
    asking, other = IrohWire(key, relays=net.relays), Key.generate()
    waiting = IrohWire(other, net.listen or usual_ports(key.id), ANYWHERE)  # one port for both families
    try:
        await asking.open(lambda link: None, _nothing)
        where = await waiting.open(lambda link: None, _nothing)
        links = await asyncio.gather(*(_dial(asking, peer) for peer in peers))
        reached = [link for link, _ in links if link]
        findings = [Finding(said) for link, said in links if link]
        if not reached:
            whys = "; ".join(said for _, said in links)
            cure = "let UDP out through the firewall; if that is so, ask for a ticket with addresses of today"
            return [Finding(f"no peer answers ({whys[:400]})", cure)]
        port = int(where.split(",")[0].rpartition(":")[2])
        return [*findings, await _back(reached, other.id, port)]
    except NetworkError as error:
        return [Finding(str(error), "connect this machine to a network that lets UDP through")]
    finally:
        await asyncio.gather(asking.close(), waiting.close())


async def _dial(wire: IrohWire, peer: Peer) -> tuple[Link | None, str]:
    name, started_s = peer_name(peer.id), time.monotonic()
    try:
        async with deadline(SystemClock(), DIAL_S, f"{name} at {peer.address}"):
            link = await wire.dial(peer)
    except NetworkError as error:
        return None, str(error)
    return link, f"{name} at {peer.address} answers, after {1000 * (time.monotonic() - started_s):.0f} ms"


def _from_near(link: Link) -> str:
    """What to add where the peer is in the same network, which says nothing about others."""
    with suppress(ValueError):
        if ipaddress.ip_address(link.origin.strip("[]")).is_private:
            return ", from within the same network: of those outside this says nothing"
    return ""


async def _back(reached: Sequence[Link], peer: bytes, port: int) -> Finding:
    """Ask one after the other to dial this machine; the first who can tell is believed."""
    whys = []
    for link in reached:
        try:
            async with deadline(SystemClock(), 2 * reach.DIAL_BACK_S, f"{peer_name(link.peer)} to dial back"):
                reply = await link.ask(encode(Request(reach.PROTO, reach.ask_to_dial(peer, port))), 1000)
        except NetworkError as error:
            whys.append(str(error))
            continue
        name = peer_name(link.peer)
        if reply.fine and not reply.body:
            return Finding(f"{name} reaches this machine at UDP port {port}{_from_near(link)}")
        whys.append(f"{name}: {printable(reply.body.decode('utf-8', 'replace')[:200])}")
    if all(MEMBERS_ONLY in why for why in whys):
        return Finding(
            "whether peers reach this machine cannot be told: the swarm answers its members only",
            "stop the node, so that it may ask under its own key, and name its run folder",
        )
    return Finding(
        f"nobody reaches this machine at UDP port {port} ({'; '.join(whys)[:400]})",
        f"forward UDP port {port} of the router to it and let it in through the firewall, or set net.relays; "
        "until then the node meets only peers that it can dial itself",
    )
