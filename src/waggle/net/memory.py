"""The in-memory twin of the network: many nodes in one process, repeatable to the last message.

Latency, loss, partitions and death are settings. With `latency_s` 0 a message has arrived when `publish`
returns; otherwise it arrives when the clock says so, and nothing here ever sleeps on the wall clock.
Loss hits pushed messages only: a request stands for a reliable stream, which is slow or broken but not lossy.

Neighbours are drawn as a union of random rings over all peers who can reach each other, which is connected
and bounded for every number of peers. The real network finds its neighbours by exchange; the twin does not
imitate how, only what comes of it.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError
from waggle.core.keys import peer_name
from waggle.core.rng import rng_for, seed_for
from waggle.core.types import Peer
from waggle.net.deadline import deadline
from waggle.net.transport import (
    MAX_REPLY_BYTES,
    QUEUE,
    Answer,
    Delivery,
    Ruling,
    Subscription,
    Validate,
    check_body,
    check_size,
    count_traffic,
    message_id,
    nobody_answered,
    not_online,
    remember,
    some_of,
)

REMEMBERED = 4096
"""Message ids that a node remembers, so that it reads and passes on each message once."""


class _Flight(NamedTuple):
    due_s: float
    sender: bytes
    receiver: bytes
    topic: bytes
    data: bytes
    id: bytes


class MemoryNetwork:
    """The wire between twins.

    Example: `MemoryNetwork(seed=1, clock=FakeClock(), latency_s=0.05, loss=0.01, degree=6)`.
    """

    def __init__(
        self,
        seed: int,
        clock: Clock,
        *,
        latency_s: float = 0.0,
        loss: float = 0.0,
        degree: int = 8,
        max_message: int = 1 << 20,
        max_in_flight: int = 65_536,
    ) -> None:
        self.clock, self.latency_s, self.loss, self.degree = clock, latency_s, loss, degree
        self.max_message = max_message
        self.seed, self._max_in_flight = seed, max_in_flight
        self._rng = rng_for(seed, "network")
        self._online: dict[bytes, MemoryTransport] = {}
        self._island: dict[bytes, int] = {}
        self._side: dict[bytes, int] = {}
        self._flights: deque[_Flight] = deque()
        self._neighbours: dict[bytes, list[bytes]] | None = None
        self._places: dict[tuple[int, bytes], int] = {}
        self._num_changes = 0
        self._pumping = False
        self._pump_task: asyncio.Task[None] | None = None

    def attach(self, peer: bytes) -> "MemoryTransport":
        """The transport of one peer, not yet online."""
        return MemoryTransport(self, peer)

    def split(self, *sides: Collection[bytes]) -> None:
        """Cut the network: only peers of the same side reach each other; those not named form one more side."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}
        self._changed()

    def heal(self) -> None:
        """Undo `split`; peers who knew each other find each other again."""
        self._side = {}
        self._changed()

    def kill(self, peer: bytes) -> None:
        """Take a peer off the network as `kill -9` would: no goodbye, requests to it fail."""
        if self._online.pop(peer, None) is not None:
            self._changed()

    def pump(self) -> None:
        """Deliver what is due. Also happens by itself; a message delivered may send others."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._flights and self._flights[0].due_s <= self.clock.now_s():
                self._deliver(self._flights.popleft())
        finally:
            self._pumping = False

    def reachable(self, sender: bytes, receiver: bytes) -> bool:
        """Whether both are online and on the same side."""
        both = sender in self._online and receiver in self._online
        return both and self._side.get(sender, -1) == self._side.get(receiver, -1)

    def online(self, transport: "MemoryTransport") -> bool:
        """Whether this very transport is the one online under its id."""
        return self._online.get(transport.id) is transport

    def go_online(self, transport: "MemoryTransport") -> None:
        """Make a peer reachable. It knows nobody yet."""
        if transport.id in self._online and not self.online(transport):
            raise NetworkError(f"{peer_name(transport.id)} is already online; one key serves one node at a time")
        self._num_changes += 1
        self._online[transport.id] = transport
        self._island[transport.id] = self._num_changes
        self._changed()

    def introduce(self, newcomer: bytes, other: bytes) -> None:
        """Make two peers, and all whom either knows, known to each other."""
        old, new = self._island[newcomer], self._island[other]
        if old != new:
            self._island = {peer: new if island == old else island for peer, island in self._island.items()}
            self._changed()

    def neighbours(self, peer: bytes) -> list[bytes]:
        """The bounded view of one peer."""
        if self._neighbours is None:
            self._neighbours = self._rings()
        return self._neighbours.get(peer, [])

    def push(self, sender: bytes, receivers: Iterable[bytes], topic: bytes, data: bytes, message_id: bytes) -> None:
        """Send one message to several peers."""
        due_s = self.clock.now_s() + self.latency_s
        for receiver in receivers:
            if self.loss and self._rng.random() < self.loss:
                self._count(receiver, "lost")
            else:
                self._flights.append(_Flight(due_s, sender, receiver, topic, data, message_id))
        while len(self._flights) > self._max_in_flight:
            self._count(self._flights.popleft().receiver, "dropped")
        if self.latency_s == 0:
            self.pump()
        elif self._pump_task is None or self._pump_task.done():
            self._pump_task = asyncio.get_running_loop().create_task(self._pump_when_due())

    async def _pump_when_due(self) -> None:
        while self._flights:
            await self.clock.sleep(max(0.0, self._flights[0].due_s - self.clock.now_s()))
            self.pump()

    def _deliver(self, flight: _Flight) -> None:
        if self.reachable(flight.sender, flight.receiver):
            self._online[flight.receiver].receive(flight.sender, flight.topic, flight.data, flight.id)
        else:
            self._count(flight.receiver, "lost")

    def reach(self, caller: bytes, peer: bytes, proto: str) -> "MemoryTransport":
        """The other end of a request.

        Raises:
            NetworkError: unreachable.
        """
        if not self.reachable(caller, peer):
            raise NetworkError(f"{peer_name(peer)} cannot be reached for {proto}; it may be gone or cut off")
        return self._online[peer]

    async def travel(self) -> None:
        """The time a request or its answer is under way."""
        if self.latency_s:
            await self.clock.sleep(self.latency_s)

    async def close(self) -> None:
        """Take everybody off; nothing is delivered any more."""
        self._flights.clear()
        if self._pump_task is not None:
            self._pump_task.cancel()
        for transport in list(self._online.values()):
            await transport.close()

    def _count(self, peer: bytes, what: str) -> None:
        if transport := self._online.get(peer):
            transport.counts[what] += 1

    def _changed(self) -> None:
        self._neighbours = None

    def _rings(self) -> dict[bytes, list[bytes]]:
        groups: dict[tuple[int, int], list[bytes]] = {}
        for peer in sorted(self._online):
            groups.setdefault((self._island[peer], self._side.get(peer, -1)), []).append(peer)
        views: dict[bytes, set[bytes]] = {peer: set() for peer in self._online}
        for members in groups.values():
            if len(members) <= self.degree + 1:
                for peer in members:
                    views[peer].update(other for other in members if other != peer)
                continue
            for ring_number in range(max(1, self.degree // 2)):
                ring = sorted(members, key=lambda peer: self._place(ring_number, peer))
                for one, next_one in zip(ring, ring[1:] + ring[:1], strict=True):
                    views[one].add(next_one)
                    views[next_one].add(one)
        return {peer: sorted(view) for peer, view in views.items()}

    def _place(self, ring_number: int, peer: bytes) -> int:
        """Where on a ring a peer stands: who comes or goes changes the neighbours of his neighbours alone."""
        place = self._places.get((ring_number, peer))
        if place is None:
            place = self._places[ring_number, peer] = seed_for(self.seed, "ring", ring_number, peer)
        return place


class MemoryTransport:
    """One node's end of a `MemoryNetwork`; fills `Transport`."""

    def __init__(self, network: MemoryNetwork, peer: bytes) -> None:
        self.id = peer
        self.max_message = network.max_message
        self.counts: Counter[str] = Counter()
        self._answers: dict[str, Answer] = {}
        self._network = network
        self._topics: dict[bytes, Subscription] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._rng = rng_for(network.seed, "fanout", peer)

    async def start(self) -> Peer:
        self._network.go_online(self)
        return Peer(self.id, "memory")

    async def join(self, bootstrap: Sequence[Peer]) -> None:
        self._need_online()
        reached = [p.id for p in bootstrap if p.id != self.id and self._network.reachable(self.id, p.id)]
        if not reached:
            raise nobody_answered([f"{peer_name(peer.id)} is not reachable" for peer in bootstrap])
        for peer in reached:
            self._network.introduce(self.id, peer)

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        self._topics[topic] = Subscription(validate, QUEUE)
        return self._topics[topic]

    async def publish(self, topic: bytes, data: bytes, fanout: int = 0) -> int:
        self._need_online()
        check_size(self, data)
        name = message_id(topic, data)
        remember(self._known, name, REMEMBERED)
        receivers = some_of(self.peers(), fanout, self._rng)
        self._push(receivers, topic, data, name)
        return len(receivers)

    def serve(self, proto: str, answer: Answer) -> None:
        self._answers[proto] = answer

    async def request(
        self, peer: bytes, proto: str, body: bytes, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        self._need_online()
        check_body(body)
        network = self._network
        async with deadline(network.clock, timeout_s, f"{peer_name(peer)} to answer {proto}"):
            count_traffic(self.counts, "sent", len(body))
            await network.travel()
            other = network.reach(self.id, peer, proto)
            reply = await other.answer(self.id, proto, body)
            await network.travel()
            network.reach(self.id, peer, proto)  # the link may have gone meanwhile
        if len(reply) > max_reply_bytes:
            raise NetworkError(
                f"{peer_name(peer)} answered {proto} with {len(reply)} bytes; at most {max_reply_bytes} are accepted"
            )
        count_traffic(self.counts, "received", len(reply))
        return reply

    def peers(self) -> list[bytes]:
        return list(self._network.neighbours(self.id)) if self._network.online(self) else []

    async def close(self) -> None:
        if self._network.online(self):
            self._network.kill(self.id)
        for subscription in self._topics.values():
            subscription.close()
        self._topics.clear()

    def receive(self, sender: bytes, topic: bytes, data: bytes, name: bytes) -> None:
        """Called by the network for a message that arrives."""
        count_traffic(self.counts, "received", len(data))
        subscription = self._topics.get(topic)
        if subscription is None or name in self._known:
            return
        remember(self._known, name, REMEMBERED)
        ruling = subscription.validate(sender, data)
        if ruling is Ruling.REJECT:
            self.counts["rejected"] += 1
            return
        if not subscription.put(Delivery(sender, data)):
            self.counts["dropped"] += 1
        if ruling is Ruling.FORWARD:
            self._push([peer for peer in self.peers() if peer != sender], topic, data, name)

    async def answer(self, caller: bytes, proto: str, body: bytes) -> bytes:
        """Called by the network: this node's answer to a request."""
        count_traffic(self.counts, "received", len(body))
        if proto not in self._answers:
            raise NetworkError(f"{peer_name(self.id)} does not speak {proto}")
        try:
            reply = await self._answers[proto](caller, body)
        except Exception as error:  # a peer's failure is data for whoever asked
            raise NetworkError(f"{peer_name(self.id)} failed to answer {proto}: {error}") from error
        count_traffic(self.counts, "sent", len(reply))
        return reply

    def _push(self, receivers: list[bytes], topic: bytes, data: bytes, name: bytes) -> None:
        for _ in receivers:
            count_traffic(self.counts, "sent", len(data))
        self._network.push(self.id, receivers, topic, data, name)

    def _need_online(self) -> None:
        if not self._network.online(self):
            raise not_online(self.id)
