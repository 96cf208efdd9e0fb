"""A node's place on the network: where it listens, whom it knows at first, and the ticket that leads to it.

All of it lives in the run folder, so that a node which comes back asks for nothing: it listens on the port that follows
from its key, where that is free, and finds its peers by its address book and those through whom it came at first.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from waggle.core.clock import SystemClock
from waggle.core.config import Config
from waggle.core.errors import ConfigError
from waggle.core.files import write_atomic
from waggle.core.keys import Key
from waggle.core.sealing import charter_digest
from waggle.core.types import Charter, Peer, Ticket
from waggle.net.book import Book
from waggle.net.iroh import ANYWHERE, IrohWire
from waggle.net.overlay import OverlayTransport
from waggle.net.pace import Pace
from waggle.net.terms import Terms
from waggle.net.thread import ThreadTransport
from waggle.net.transport import Transport, address_text, read_address
from waggle.node.runfolder import RunFolder
from waggle.swarm.charter import is_member, ticket_text

FIRST_PORT = 49152
"""Of those that are nobody's in particular (RFC 6335)."""
MAX_BOOTSTRAP = 32
MAX_TICKET_PEERS = 8


def transport_for(folder: RunFolder, key: Key, config: Config, charter: Charter, pace: Pace) -> Transport:
    """The node's transport, on a thread of its own, not yet started."""
    net = config.net
    wire = IrohWire(
        key, net.listen or usual_ports(key.id), () if net.listen else ANYWHERE, net.announce, net.relays, pace
    )
    terms = Terms(charter_digest(charter), admits=partial(is_member, charter))
    return ThreadTransport(OverlayTransport(key, wire, SystemClock(), Book(key.id, folder.book_file), terms))


def usual_ports(peer: bytes) -> tuple[str, str]:
    """Everywhere, on the port that follows from the key, so that a node is where it was after a restart."""
    port = FIRST_PORT + int.from_bytes(peer[:4], "big") % (65536 - FIRST_PORT)
    return f"0.0.0.0:{port}", f"[::]:{port}"


def address_of(folder: RunFolder) -> Peer | None:
    """Where the node was reachable last, if it ever was."""
    return next(iter(_read(folder.address_file)), None)


def keep_bootstrap(folder: RunFolder, peers: Sequence[Peer]) -> None:
    """Write down through whom the node comes in."""
    text = "".join(f"{address_text(peer)}\n" for peer in peers[:MAX_BOOTSTRAP])
    write_atomic(folder.bootstrap_file, text.encode())


def bootstrap_of(folder: RunFolder) -> list[Peer]:
    """Through whom the node comes in; damaged lines are left out."""
    return _read(folder.bootstrap_file)


def _read(file: Path) -> list[Peer]:
    text = file.read_text("utf-8", "replace") if file.exists() else ""
    peers = []
    for line in text.splitlines()[:MAX_BOOTSTRAP]:
        try:
            peers.append(read_address(line))
        except ConfigError:
            continue
    return peers


def keep_address(folder: RunFolder, me: Peer, charter: Charter) -> None:
    """Write down where this node is reachable, and the ticket that says so: through it, then through whom it came."""
    write_atomic(folder.address_file, address_text(me).encode() + b"\n")
    ways = [me, *(peer for peer in bootstrap_of(folder) if peer.id != me.id)][:MAX_TICKET_PEERS]
    write_atomic(folder.ticket_file, ticket_text(Ticket(charter, tuple(map(address_text, ways)))).encode() + b"\n")
