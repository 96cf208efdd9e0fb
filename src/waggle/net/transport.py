"""What a node asks of a network: nine methods that the in-memory twin and the real network both fill.

Two ways for bytes to travel. `publish` pushes a small message (a charter, an announcement, an address
record) to neighbours, a bounded active view; each neighbour's validator rules whether it is passed on,
kept or refused, before anything is forwarded. `request` asks one peer and waits for one answer, at most
until its deadline; that is how experience is pulled.

Left out: streams of unknown length. What is large is cut into pieces with digests, and each piece is one
request, so that it can come from any peer and be checked alone.
"""

import asyncio
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np

from waggle.core.errors import ConfigError, NetworkError
from waggle.core.keys import peer_name
from waggle.core.types import Peer

MAX_REPLY_BYTES = 8 << 20
"""The largest answer to a request that is accepted unless the caller says otherwise, in bytes."""

MAX_BODY_BYTES = 1 << 16
"""The largest body of a request. Questions are small; what is large is asked for in pieces."""

MAX_ADDRESS_CHARS = 200
"""Of where a peer can be reached, in tickets and address records."""

QUEUE = 1024
"""Deliveries that a subscription holds before the oldest is dropped."""


class Ruling(StrEnum):
    """What a validator says of a message that was pushed to this node."""

    FORWARD = "forward"
    """Mine to read, and to pass on to my neighbours."""
    DELIVER = "deliver"
    """Mine to read, not passed on: an announcement of a round."""
    REJECT = "reject"
    """Neither read nor passed on."""


class Delivery(NamedTuple):
    """A pushed message. `sender` is the neighbour that passed it, not necessarily who wrote it."""

    sender: bytes
    data: bytes


Validate = Callable[[bytes, bytes], Ruling]
"""(neighbour, data) -> ruling. Quick, without waiting, and total: it must not raise whatever the bytes."""

Answer = Callable[[bytes, bytes], Awaitable[bytes]]
"""(caller, body) -> reply. The caller's id is authenticated. What it raises, the caller sees as a NetworkError."""


class Subscription:
    """Messages of one topic in the order of their arrival. A full queue drops its oldest, counted in `num_dropped`."""

    def __init__(self, validate: Validate, size: int = QUEUE) -> None:
        self.validate = validate
        self.num_dropped = 0
        self._queue: deque[Delivery] = deque(maxlen=size)
        self._size = size
        self._arrived = asyncio.Event()
        self._closed = False

    def put(self, delivery: Delivery) -> bool:
        """Called by the transport. False where the oldest message had to go."""
        if self._closed:
            return True
        room = len(self._queue) < self._size
        if not room:
            self.num_dropped += 1
        self._queue.append(delivery)  # a full one loses its oldest by this
        self._arrived.set()
        return room

    def drain(self) -> list[Delivery]:
        """Everything that has arrived, without waiting. May be called from any thread."""
        waiting = []
        while self._queue:  # piece by piece: the network's thread may be adding to it
            waiting.append(self._queue.popleft())
        return waiting

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Delivery:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    def close(self) -> None:
        """No more messages; an iteration in progress ends after those that wait."""
        self._closed = True
        self._arrived.set()


class Transport(Protocol):
    """A node's connection to its peers. Ids are Ed25519 public keys, 32 bytes, and are authenticated."""

    id: bytes
    max_message: int
    """The largest message that can be published, in bytes."""
    counts: Counter[str]
    """`sent`, `received` and `sent_bytes`, `received_bytes` of both ways; `rejected`, `dropped`, `lost` messages."""

    async def start(self) -> Peer:
        """Go online. Returns how others can reach this node."""
        ...

    async def join(self, bootstrap: Sequence[Peer]) -> None:
        """Meet the peers of at least one of these.

        Raises:
            NetworkError: none of them answered.
        """
        ...

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        """Receive a topic's messages from now on, each once, never one's own. One subscription a topic."""
        ...

    async def publish(self, topic: bytes, data: bytes, fanout: int = 0) -> int:
        """Push to at most `fanout` neighbours drawn at random (0: to all). Returns to how many.

        Raises:
            NetworkError: larger than `max_message`, or not online.
        """
        ...

    def serve(self, proto: str, answer: Answer) -> None:
        """Answer requests of a protocol, e.g. `waggle/pull/1`."""
        ...

    async def request(
        self, peer: bytes, proto: str, body: bytes, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        """Ask one peer and wait for the answer.

        Raises:
            NetworkError: unreachable, past the deadline (naming what was waited for), failed on the other
                side, no such protocol there, or a reply over the limit.
        """
        ...

    def peers(self) -> list[bytes]:
        """The neighbours: a bounded view of the swarm, in a stable order."""
        ...

    async def close(self) -> None:
        """Say goodbye; what is under way is dropped. A closed transport may be started again."""
        ...


def message_id(topic: bytes, data: bytes) -> bytes:
    """What a message is known by, 32 bytes."""
    return hashlib.sha256(topic + b"\0" + data).digest()


def remember(names: OrderedDict[bytes, None], name: bytes, most: int) -> None:
    """Add a name to a memory that forgets its oldest."""
    names[name] = None
    if len(names) > most:
        names.popitem(last=False)


def some_of(peers: list[bytes], fanout: int, rng: np.random.Generator) -> list[bytes]:
    """At most `fanout` of the peers, drawn at random, in their order; 0 takes all."""
    if not 0 < fanout < len(peers):
        return peers
    picks = rng.choice(len(peers), fanout, replace=False)
    return [peers[i] for i in sorted(picks.tolist())]


def count_traffic(counts: Counter[str], way: str, size_bytes: int) -> None:
    """Count one message that was `sent` or `received`."""
    counts[way] += 1
    counts[f"{way}_bytes"] += size_bytes


def nobody_answered(reasons: Sequence[str]) -> NetworkError:
    """What `join` raises; the reasons are those of each peer that was tried."""
    told = "; ".join(dict.fromkeys(reasons)) or "an empty list"
    return NetworkError(f"none of the peers to join through took this node in ({told[:500]})")


def not_online(peer: bytes) -> NetworkError:
    """What a transport raises that was not started."""
    return NetworkError(f"{peer_name(peer)} is not online; start the transport first")


def check_body(body: bytes) -> None:
    """Refuse a request that nobody would read.

    Raises:
        NetworkError: it is too large.
    """
    if len(body) > MAX_BODY_BYTES:
        raise NetworkError(f"a request of {len(body)} bytes; at most {MAX_BODY_BYTES} are read")


def check_size(transport: Transport, data: bytes) -> None:
    """The common limit on what is published.

    Raises:
        NetworkError: too large.
    """
    if len(data) > transport.max_message:
        raise NetworkError(
            f"a message of {len(data)} bytes is too large to publish (at most {transport.max_message}); "
            "announce it and serve it on request"
        )


def address_text(peer: Peer) -> str:
    """A peer's id and address in one word, as tickets carry them. Example: `3f2a..64 hex..@127.0.0.1:4242`."""
    return f"{peer.id.hex()}@{peer.address}"


def read_address(text: str) -> Peer:
    """What `address_text` wrote.

    Raises:
        ConfigError: not of that form.
    """
    name, at, address = text.strip().partition("@")
    try:
        peer = bytes.fromhex(name)
    except ValueError:
        peer = b""
    if not at or not address or len(peer) != 32 or len(address) > MAX_ADDRESS_CHARS:
        raise ConfigError(f"{text[:80]!r} is not a peer's address; expected 64 hex digits, @, and where to reach it")
    return Peer(peer, address)
