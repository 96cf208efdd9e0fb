"""The real wire: QUIC connections between keys, by iroh.

An endpoint's id is the node's Ed25519 key, so who answers has proven who he is. Nothing but the addresses that peers
give is dialled: no discovery service, no relay unless one is configured. One connection carries frames on one stream,
which the dialler opens first, and a stream for each request. What iroh 1.2 lacks is made up for here: its Python
binding copies a byte at a time (mended when the module is loaded), and its errors say what is wrong only when asked.
It notices a peer that died after half a minute; the overlay's pings do sooner.
"""

import asyncio
import contextlib
import ctypes
import inspect
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from waggle.core.clock import SystemClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key, peer_name
from waggle.core.types import Peer
from waggle.net.pace import Pace
from waggle.net.tasks import Tasks
from waggle.net.transport import MAX_ADDRESS_CHARS
from waggle.net.wire import MAX_FRAME_BYTES, MAX_REQUEST_BYTES, Link, OnLink, OnRequest, Reply

ALPN = b"waggle/1"
ANYWHERE = ("0.0.0.0:0", "[::]:0")
_FRAMES, _REQUEST = b"F", b"R"
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18
_REPLY_HEAD = 9
"""One byte that says whether all went well, and the length of what follows."""
MAX_STREAMS = 16
"""Requests of one peer that are answered at once."""
WINDOW_BYTES = 2 << 20
"""Bytes of one connection that wait to be read: a megabyte a second at two seconds' round trip."""
REQUEST_S, ANSWER_S = 30.0, 60.0
"""How long a peer may take to write a request down, and to be given and to read the answer."""
HANDSHAKE_S, MAX_KNOCKING = 10.0, 64
CLOSE_S = 3.0


@lru_cache(maxsize=1)
def _iroh() -> Any:
    """The module, with its slow copy loop replaced.

    Raises:
        NetworkError: it is not installed.
    """
    try:
        import iroh
        from iroh import iroh_ffi
    except ImportError as error:
        raise NetworkError("the package iroh is not installed; install waggledance again, it needs iroh 1.2") from error
    builder: Any = iroh_ffi._UniffiRustBufferBuilder
    if "memmove" not in inspect.getsource(builder.write):

        def write(self: Any, value: bytes) -> None:
            with self._reserve(len(value)):
                start = ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len
                ctypes.memmove(start, bytes(value), len(value))

        builder.write = write
    return iroh


def _preset(bind: Sequence[str]) -> Any:
    """Iroh without discovery, on these addresses alone: by itself it opens the other family to everybody."""
    iroh = _iroh()

    class Bound(iroh.Preset):  # type: ignore[misc,name-defined]
        def apply(self, builder: Any) -> None:
            builder.apply_minimal()
            for address in bind:
                builder.bind_addr(address)

    return Bound()


def _said(error: BaseException) -> str:
    """What an error of iroh's says: its text is empty."""
    return str(error.message()) if hasattr(error, "message") else str(error) or type(error).__name__


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
    """

    def __init__(
        self,
        key: Key,
        bind: Sequence[str] = ANYWHERE,
        spare: Sequence[str] = (),
        announce: Sequence[str] = (),
        relays: Sequence[str] = (),
        pace: Pace | None = None,
    ) -> None:
        self._key, self._bind, self._spare = key, tuple(bind), tuple(spare)
        self._announce, self._relays = tuple(announce), list(relays)
        self.pace = pace or Pace(SystemClock())
        self._endpoint: Any = None
        self._tasks = Tasks()
        self._knocking = 0
        """Handshakes under way."""
        self._links: dict[bytes, IrohLink] = {}
        self._on_link: OnLink | None = None
        self._on_request: OnRequest | None = None

    async def open(self, on_link: OnLink, on_request: OnRequest) -> str:
        iroh = _iroh()
        self._on_link, self._on_request = on_link, on_request
        why = ""
        for bind in filter(None, (self._bind, _without_ipv6(self._bind), self._spare, _without_ipv6(self._spare))):
            try:
                self._endpoint = await self._bound(bind)
                break
            except iroh.IrohError as error:
                why = why or _said(error)
        else:
            where = " and ".join(self._bind)
            raise NetworkError(f"cannot listen on {where}: {why}; choose another address or port")
        self._tasks.begin(self._accept())
        return self.address()

    async def _bound(self, bind: Sequence[str]) -> Any:
        iroh = _iroh()
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
            if self._knocking < MAX_KNOCKING:
                self._tasks.begin(self._take(incoming))
            else:
                await incoming.refuse()

    async def _take(self, incoming: Any) -> None:
        iroh = _iroh()
        self._knocking += 1
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                connection = await (await incoming.accept()).connect()
        except (iroh.IrohError, TimeoutError):
            return  # somebody who knocked and did not come in
        finally:
            self._knocking -= 1
        self._tasks.begin(self._serve(IrohLink(connection, self.pace, dialled=False)))

    async def _serve(self, link: "IrohLink") -> None:
        """Hand a link over, and its streams to whom they are for, until it ends."""
        assert self._on_link is not None
        self._links[link.peer] = link
        if not link.dialled:
            self._on_link(link)
        self._tasks.begin(link.refuse_one_way())
        room = asyncio.Semaphore(MAX_STREAMS)
        while (stream := await link.next_stream()) is not None:
            await room.acquire()
            task = self._tasks.begin(self._handle(link, stream))
            task.add_done_callback(lambda _: room.release())
        if self._links.get(link.peer) is link:
            del self._links[link.peer]

    async def _handle(self, link: "IrohLink", stream: Any) -> None:
        iroh = _iroh()
        assert self._on_request is not None
        try:
            async with asyncio.timeout(REQUEST_S):
                kind = await stream.recv().read_exact(1)
                if kind == _FRAMES:
                    link.take_frames(stream)
                if kind != _REQUEST:
                    return
                body = await stream.recv().read_to_end(MAX_REQUEST_BYTES)
                self.pace.receive(len(body))
        except (iroh.IrohError, TimeoutError):
            return  # the caller went away, wrote too much or too slowly: his request is no more
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await self._on_request(link.peer, bytes(body))
                head = bytes((reply.fine,)) + len(reply.body).to_bytes(_REPLY_HEAD - 1, "big")
                await _write(stream.send(), head + reply.body, self.pace)
                await stream.send().finish()
        except (iroh.IrohError, TimeoutError):
            return  # nobody waits for the answer any more, or reads it too slowly

    async def dial(self, peer: Peer) -> Link:
        iroh = _iroh()
        if self._endpoint is None:
            raise NetworkError("this node is not online")
        try:
            relay, direct = split_address(peer.address)
            where = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer.id), relay, direct)
            connection = await self._endpoint.connect(where, ALPN)
            stream = await connection.open_bi()
            await stream.send().write_all(_FRAMES)  # at once: a stream that is open and empty would be given up
        except (iroh.IrohError, ValueError) as error:
            raise NetworkError(f"{peer_name(peer.id)} is not at {peer.address}: {_said(error)}") from error
        link = IrohLink(connection, self.pace, dialled=True)
        link.frames_go(stream)
        self._tasks.begin(self._serve(link))
        return link

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


async def _write(sender: Any, data: bytes, pace: Pace) -> None:
    """Write at the wire's pace."""
    for first in range(0, len(data), pace.piece_bytes):
        piece = data[first : first + pace.piece_bytes]
        await pace.send(len(piece))
        await sender.write_all(piece)


class IrohLink:
    """One connection. Fills `Link`."""

    def __init__(self, connection: Any, pace: Pace, dialled: bool) -> None:
        self.peer, self.dialled = bytes(connection.remote_id().to_bytes()), dialled
        self._connection, self._pace = connection, pace
        connection.set_max_concurrent_bi_streams(MAX_STREAMS + 1)  # what a peer may have waiting here is bounded
        connection.set_receive_window(WINDOW_BYTES)
        self.received_bytes = 0
        self._sender: Any = None
        self._receiver: Any = None
        self._ready = asyncio.Event()
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._sending = asyncio.Lock()

    def frames_go(self, stream: Any) -> None:
        """Frames are written to and read from this stream, which this end opened."""
        self._sender, self._receiver = stream.send(), stream.recv()
        self._ready.set()

    def take_frames(self, stream: Any) -> None:
        """Likewise, of a stream that the other end opened; the first of its kind counts."""
        if self._sender is None:
            self.frames_go(stream)

    @property
    def host(self) -> str:
        """Where the other end is, without its port; empty where it comes by a relay."""
        found = [str(path.remote_addr) for path in self._connection.paths() if not path.is_relay]
        return found[0].rpartition(":")[0] if found else ""

    async def next_stream(self) -> Any:
        """The next stream that the peer opens, or None once the link is gone."""
        try:
            return await self._connection.accept_bi()
        except _iroh().IrohError:
            self._ready.set()
            return None

    async def refuse_one_way(self) -> None:
        """Nobody here reads streams that go one way; who opens one would only fill memory, and is cut off."""
        try:
            await self._connection.accept_uni()
        except _iroh().IrohError:
            return
        self.close("a stream that nobody reads")

    async def send(self, frames: Sequence[bytes]) -> None:
        async with self._sending:
            data = b"".join(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame for frame in frames)
            await self._frame_stream()
            try:
                await _write(self._sender, data, self._pace)
            except _iroh().IrohError as error:
                raise NetworkError(self._why(error)) from error

    async def _frame_stream(self) -> None:
        await self._ready.wait()
        if self._sender is None:
            raise NetworkError(self._why(None))

    async def receive(self) -> bytes:
        await self._frame_stream()
        while not self._frames:
            try:
                data = await self._receiver.read(_READ_BYTES)
            except _iroh().IrohError as error:
                raise NetworkError(self._why(error)) from error
            if not data:
                raise NetworkError(self._why(None))
            self._buffer += data
            self.received_bytes += len(data)
            self._pace.receive(len(data))
            self._split()
        return self._frames.popleft()

    def _split(self) -> None:
        """Cut whole frames from the buffer."""
        while len(self._buffer) >= _LENGTH_BYTES:
            size = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise NetworkError(f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are read")
            if len(self._buffer) < _LENGTH_BYTES + size:
                return
            self._frames.append(bytes(self._buffer[_LENGTH_BYTES : _LENGTH_BYTES + size]))
            del self._buffer[: _LENGTH_BYTES + size]

    async def ask(self, body: bytes, max_reply_bytes: int) -> Reply:
        try:
            stream = await self._connection.open_bi()
            await _write(stream.send(), _REQUEST + body, self._pace)
            await stream.send().finish()
            head = await stream.recv().read_exact(_REPLY_HEAD)
            size = int.from_bytes(head[1:], "big")
            if size > max_reply_bytes:
                raise NetworkError(f"an answer of {size} bytes; at most {max_reply_bytes} are accepted")
            return Reply(head[0] == 1, await self._read(stream.recv(), size))
        except _iroh().IrohError as error:
            raise NetworkError(self._why(error)) from error

    async def _read(self, receiver: Any, size: int) -> bytes:
        """An answer, piece by piece: each says that the peer is there."""
        data = bytearray()
        while len(data) < size:
            piece = await receiver.read(min(_READ_BYTES, size - len(data)))
            if not piece:
                raise NetworkError(f"an answer that ends after {len(data)} of {size} bytes")
            data += piece
            self.received_bytes += len(piece)
            self._pace.receive(len(piece))
        return bytes(data)

    def _why(self, error: BaseException | None) -> str:
        reason = self._connection.close_reason()
        return f"the connection is gone ({reason or (_said(error) if error else 'closed')})"

    def close(self, why: str) -> None:
        self._connection.close(0, why.encode()[:200])
        self._ready.set()
