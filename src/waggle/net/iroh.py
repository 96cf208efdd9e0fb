"""The real wire: QUIC connections between keys, by iroh.

An endpoint's id is the node's Ed25519 key, so who answers has proven who he is. Nothing but the addresses that peers
give is dialled: no discovery service, no relay unless one is configured. One connection carries frames on one stream,
which the dialler opens first, and a stream for each request. Who may come in is asked of a `Guard`, before a handshake
costs anything. Iroh notices a peer that died after half a minute; the overlay's pings do sooner.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any

from waggle.core.clock import SystemClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key, peer_name
from waggle.core.types import Peer
from waggle.net.guard import Guard
from waggle.net.iroh_link import FRAMES, MAX_ASKED, REPLY_HEAD, REQUEST, IrohLink, iroh_module, said, write
from waggle.net.pace import Pace
from waggle.net.tasks import Tasks
from waggle.net.transport import MAX_ADDRESS_CHARS
from waggle.net.wire import MAX_REQUEST_BYTES, Link, OnLink, OnRequest, Rude

ALPN = b"waggle/1"
ANYWHERE = ("0.0.0.0:0", "[::]:0")
REQUEST_S, ANSWER_S = 30.0, 60.0
"""How long a peer may take to write a request down, and to be given and to read the answer."""
HANDSHAKE_S, MAX_KNOCKING = 10.0, 64
TOO_LONG = "TooLong"
"""What iroh says of a stream that holds more than is read."""
CLOSE_S = 3.0


def _preset(bind: Sequence[str]) -> Any:
    """Iroh without discovery, on these addresses alone: by itself it opens the other family to everybody."""
    iroh = iroh_module()

    class Bound(iroh.Preset):  # type: ignore[misc,name-defined]
        def apply(self, builder: Any) -> None:
            builder.apply_minimal()
            for address in bind:
                builder.bind_addr(address)

    return Bound()


def _without_ipv6(bind: Sequence[str]) -> tuple[str, ...]:
    """The same for a machine without IPv6; empty where that is nothing else."""
    other = tuple(address for address in bind if not address.startswith("["))
    return other if len(other) < len(bind) else ()


def split_address(address: str) -> tuple[str | None, list[str]]:
    """The relay and the direct addresses of a peer. Example: `https://relay.example,192.0.2.7:4242`."""
    parts = address.split(",")
    relays = [part for part in parts if part.startswith("https://")]
    return (relays[0] if relays else None), [part for part in parts if part not in relays]


class IrohWire:
    """One node's endpoint. Fills `Wire`.

    Args:
        bind: where to listen, addresses with ports, one a family; port 0 takes a free one.
        spare: where to listen if that is taken; nowhere by default.
        announce: addresses that peers are told first, where the node's own are hidden.
        relays: URLs of relays for nodes that cannot be reached; none by default.
        pace: counts what goes over the wire and holds it to a rate.
        guard: says who may come in.
    """

    def __init__(
        self,
        key: Key,
        bind: Sequence[str] = ANYWHERE,
        spare: Sequence[str] = (),
        announce: Sequence[str] = (),
        relays: Sequence[str] = (),
        pace: Pace | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._key, self._bind, self._spare = key, tuple(bind), tuple(spare)
        self._announce, self._relays = tuple(announce), list(relays)
        clock = SystemClock()
        self.guard = guard or Guard(clock)
        self.pace = pace or Pace(clock)
        self.pace.meter = self.wire_bytes
        self._endpoint: Any = None
        self._tasks = Tasks()
        self._knocking = 0
        """Handshakes under way."""
        self._links: dict[bytes, IrohLink] = {}
        self._live: set[IrohLink] = set()
        self._ended_bytes = 0
        """What links carried that are no more."""
        self._on_link: OnLink | None = None
        self._on_request: OnRequest | None = None

    async def open(self, on_link: OnLink, on_request: OnRequest) -> str:
        iroh = iroh_module()
        self._on_link, self._on_request = on_link, on_request
        why = ""
        for bind in filter(None, (self._bind, _without_ipv6(self._bind), self._spare, _without_ipv6(self._spare))):
            try:
                self._endpoint = await self._bound(bind)
                break
            except iroh.IrohError as error:
                why = why or said(error)
        else:
            where = " and ".join(self._bind)
            raise NetworkError(f"cannot listen on {where}: {why}; choose another address or port")
        self._tasks.begin(self._accept())
        return self.address()

    async def _bound(self, bind: Sequence[str]) -> Any:
        iroh = iroh_module()
        mode = iroh.RelayMode.custom_from_urls(self._relays) if self._relays else iroh.RelayMode.disabled()
        options = iroh.EndpointOptions(
            preset=_preset(bind), secret_key=self._key.secret(), alpns=[ALPN], relay_mode=mode
        )
        return await iroh.Endpoint.bind(options)

    def address(self) -> str:
        """What was bound, or the machine's own addresses where that is all of them."""
        bound = [str(address) for address in self._endpoint.bound_sockets()]
        if any(address.startswith(("0.0.0.0:", "[::]:")) for address in bound):
            bound = [str(address) for address in self._endpoint.addr().direct_addresses()] or bound
        chosen = ""
        for address in (*self._announce, *self._relays[:1], *bound):
            longer = f"{chosen},{address}" if chosen else address
            if len(longer) <= MAX_ADDRESS_CHARS:
                chosen = longer
        return chosen

    async def _accept(self) -> None:
        while (incoming := await self._endpoint.accept_next()) is not None:
            with contextlib.suppress(iroh_module().IrohError):  # it is gone already
                await self._look_at(incoming)

    async def _look_at(self, incoming: Any) -> None:
        """Let somebody in, or not, before anything else is done for it."""
        came = await incoming.remote_addr()
        origin = came.addr.rpartition(":")[0] if came.is_IP() else came.url if came.is_RELAY() else ""
        if self._knocking >= MAX_KNOCKING:
            await incoming.refuse()
        elif not (self.guard.trusts(origin) or await incoming.remote_addr_validated()):
            await incoming.retry()
        elif not self.guard.lets_in(origin):
            await incoming.ignore()  # who is no attacker asks again by itself, within the time of a dial
        else:
            self._tasks.begin(self._take(incoming, origin))

    async def _take(self, incoming: Any, origin: str) -> None:
        iroh = iroh_module()
        self._knocking += 1
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                connection = await (await incoming.accept()).connect()
        except (iroh.IrohError, TimeoutError):
            return  # somebody who knocked and did not come in
        finally:
            self._knocking -= 1
        link = IrohLink(connection, self.pace, origin, dialled=False)
        if out_s := self.guard.keeps_out(link.peer, origin):
            link.close(f"kept out for {out_s:.0f} s after what it did")
            self._ended_bytes += link.wire_bytes
        else:
            self._tasks.begin(self._serve(link))

    async def _serve(self, link: IrohLink) -> None:
        """Hand a link over, and its streams to whom they are for, until it ends."""
        assert self._on_link is not None
        self._links[link.peer] = link
        self._live.add(link)
        if not link.dialled:
            self._on_link(link)
        for what, came in (("one-way stream", link.one_way), ("datagram", link.datagram)):
            self._tasks.begin(self._refuse(link, what, came()))
        requests = Tasks()
        try:
            while (stream := await link.next_stream()) is not None:
                requests.begin(self._handle(link, stream))  # none waits unread: each could hold a megabyte
        finally:
            self._ended_bytes += link.wire_bytes
            self._live.discard(link)
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
            await requests.cancel()  # nobody waits for the answers any more

    async def _refuse(self, link: IrohLink, what: str, came: Awaitable[bool]) -> None:
        """Nobody here reads these; who sends one would only fill memory, and is cut off."""
        if await came:
            self._cut(link, Rude("unread", f"a {what} that nobody reads"))

    def _cut(self, link: IrohLink, error: Rude) -> None:
        if not link.closed:  # once for all that it does at a time
            self.guard.blame(link.peer, link.origin, error.reason)
            link.close(str(error))

    async def _handle(self, link: IrohLink, stream: Any) -> None:
        link.num_asked += 1
        try:
            if link.num_asked > MAX_ASKED:
                raise Rude("too-many-requests", "too many requests at a time")
            body = await self._read(link, stream)
            if body is not None:
                await self._reply(link, stream, body)
        except (iroh_module().IrohError, TimeoutError):  # the caller went away, or is too slow
            if not link.broken.take():
                self._cut(link, Rude("broken-requests", "too many requests that come to no end"))
        except Rude as error:
            self._cut(link, error)
        finally:
            link.num_asked -= 1

    async def _read(self, link: IrohLink, stream: Any) -> bytes | None:
        """A request, or None where the stream is for something else."""
        try:
            async with asyncio.timeout(REQUEST_S):
                kind = await stream.recv().read_exact(1)
                if kind == FRAMES:
                    link.take_frames(stream)
                return bytes(await stream.recv().read_to_end(MAX_REQUEST_BYTES)) if kind == REQUEST else None
        except iroh_module().IrohError as error:
            if TOO_LONG in said(error):
                raise Rude("too-large", f"a request of more than {MAX_REQUEST_BYTES} bytes") from error
            raise

    async def _reply(self, link: IrohLink, stream: Any, body: bytes) -> None:
        """Answer a request when it is its turn."""
        assert self._on_request is not None
        wait_s = self.guard.request_wait_s(link.origin)
        if wait_s < 0:
            raise TimeoutError  # others of this host may ask for it, and this one pays a little only
        await asyncio.sleep(wait_s)
        async with link.turns, asyncio.timeout(ANSWER_S):
            reply = await self._on_request(link.peer, body)
            head = bytes((reply.fine,)) + len(reply.body).to_bytes(REPLY_HEAD - 1, "big")
            await write(stream.send(), head + reply.body, self.pace)
            await stream.send().finish()

    async def dial(self, peer: Peer) -> Link:
        iroh = iroh_module()
        if self._endpoint is None:
            raise NetworkError("this node is not online")
        try:
            relay, direct = split_address(peer.address)
            where = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer.id), relay, direct)
            connection = await self._endpoint.connect(where, ALPN)
            stream = await connection.open_bi()
            await stream.send().write_all(FRAMES)  # at once: a stream that is open and empty would be given up
        except (iroh.IrohError, ValueError) as error:
            raise NetworkError(f"{peer_name(peer.id)} is not at {peer.address}: {said(error)}") from error
        link = IrohLink(connection, self.pace, relay or "", dialled=True)
        link.origin = link.host or link.origin  # where it is, not where it says it is
        link.frames_go(stream)
        self._tasks.begin(self._serve(link))
        return link

    def wire_bytes(self) -> int:
        """What went over the wire so far, both ways, headers and whatever else iroh sends on connections included."""
        return self._ended_bytes + sum(link.wire_bytes for link in tuple(self._live))

    def host_of(self, peer: bytes) -> str:
        link = self._links.get(peer)
        return link.host if link else ""

    async def close(self) -> None:
        if self._endpoint is None:
            return
        endpoint, self._endpoint = self._endpoint, None
        await self._tasks.cancel()  # one that were held on to would keep the socket open
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await endpoint.close()
