"""The in-memory twin of a wire, for the overlay's own tests and simulations: links between nodes of one process.

Latency, partitions and sudden death are settings, and time passes only on the clock that is given. Frames of one link
stay in order. Left out: loss, since a link stands for a reliable stream.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError
from waggle.core.keys import peer_name
from waggle.core.types import Peer
from waggle.net.guard import Guard
from waggle.net.wire import MAX_FRAME_BYTES, OnLink, OnRequest, Reply, Rude


class MemoryWires:
    """What connects the wires of one process. Example: `MemoryWires(clock, latency_s=0.05).wire(key.id)`."""

    def __init__(self, clock: Clock, latency_s: float = 0.0) -> None:
        self.clock, self.latency_s = clock, latency_s
        self.open: dict[bytes, MemoryWire] = {}
        self._side: dict[bytes, int] = {}

    def wire(self, peer: bytes) -> "MemoryWire":
        """The wire of one node, not yet open."""
        return MemoryWire(self, peer)

    def split(self, *sides: Collection[bytes]) -> None:
        """Cut the network: links between sides end; those not named form one more side."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}
        for wire in self.open.values():
            for link in list(wire.links):
                if not self.reachable(wire.id, link.peer):
                    link.break_off("cut off")

    def heal(self) -> None:
        """Undo `split`."""
        self._side = {}

    def reachable(self, one: bytes, other: bytes) -> bool:
        """Whether both are open and on the same side."""
        return one in self.open and other in self.open and self._side.get(one, -1) == self._side.get(other, -1)

    async def travel(self) -> None:
        """The time that something is under way."""
        await self.clock.sleep(self.latency_s)


class MemoryWire:
    """One node's end. Fills `Wire`."""

    def __init__(self, wires: MemoryWires, peer: bytes) -> None:
        self.id, self._wires = peer, wires
        self.links: set[MemoryLink] = set()
        self.sent_bytes = 0
        """Bytes of frames and requests that this node put on its uplink."""
        self.guard = Guard(wires.clock)
        self._on_link: OnLink | None = None
        self.on_request: OnRequest | None = None

    async def open(self, on_link: OnLink, on_request: OnRequest) -> str:
        self._on_link, self.on_request = on_link, on_request
        self._wires.open[self.id] = self
        return "memory"

    async def dial(self, peer: Peer) -> "MemoryLink":
        await self._wires.travel()
        if not self._wires.reachable(self.id, peer.id):
            raise NetworkError(f"{peer_name(peer.id)} is not at {peer.address}")
        other = self._wires.open[peer.id]
        mine, theirs = MemoryLink(self._wires, self, other, True), MemoryLink(self._wires, other, self, False)
        mine.end, theirs.end = theirs, mine
        if not other.guard.lets_in(self.id.hex()) or other.guard.keeps_out(self.id, self.id.hex()):
            raise NetworkError(f"{peer_name(peer.id)} lets nobody in from there for a while")
        assert other._on_link is not None
        other._on_link(theirs)
        return mine

    def address(self) -> str:
        return "memory"

    def host_of(self, peer: bytes) -> str:
        return "memory" if any(link.peer == peer for link in self.links) else ""

    async def close(self) -> None:
        self._wires.open.pop(self.id, None)
        for link in list(self.links):
            link.break_off("gone")


class MemoryLink:
    """One end of a link. Fills `Link`."""

    end: "MemoryLink"

    def __init__(self, wires: MemoryWires, owner: MemoryWire, other: MemoryWire, dialled: bool) -> None:
        self.peer, self.origin, self.dialled = other.id, other.id.hex(), dialled
        self.received_bytes = 0
        self._wires, self._owner, self._other = wires, owner, other
        self._arrived: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._broken = ""
        owner.links.add(self)

    async def send(self, frames: Sequence[bytes]) -> None:
        self._need_whole()
        self._owner.sent_bytes += sum(len(frame) + 4 for frame in frames)
        await self._wires.travel()
        self._need_whole()
        if any(len(frame) > MAX_FRAME_BYTES for frame in frames):
            self.end.break_off("a frame that is too large")
            raise NetworkError("a frame that is too large")
        self.end._arrived.extend(frames)
        self.end.received_bytes += sum(map(len, frames))
        self.end._news.set()

    async def receive(self) -> bytes:
        while not self._arrived:
            self._need_whole()
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    async def ask(self, body: bytes, max_reply_bytes: int) -> Reply:
        self._need_whole()
        self._owner.sent_bytes += len(body)
        await self._wires.travel()
        self._need_whole()
        assert self._other.on_request is not None
        try:
            reply = await self._other.on_request(self._owner.id, body)
        except Rude as error:
            self._other.guard.blame(self._owner.id, self.end.origin, error.reason)
            self.break_off(str(error))
            raise NetworkError(f"the connection is gone ({error})") from error
        self._other.sent_bytes += len(reply.body)
        await self._wires.travel()
        self._need_whole()
        if len(reply.body) > max_reply_bytes:
            raise NetworkError(f"an answer of {len(reply.body)} bytes; at most {max_reply_bytes} are accepted")
        return reply

    def _need_whole(self) -> None:
        if self._broken:
            raise NetworkError(f"the connection is gone ({self._broken})")

    def close(self, why: str) -> None:
        self.break_off(why)

    def break_off(self, why: str) -> None:
        """End both ends."""
        for end in (self, self.end):
            end._broken = end._broken or why
            end._owner.links.discard(end)
            end._news.set()
