"""One connection of the real wire, and what iroh 1.2 lacks: a fast copy, and errors that say what is wrong."""

import asyncio
import ctypes
import inspect
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Any

from waggle.core.clock import SystemClock
from waggle.core.errors import NetworkError
from waggle.net.allowance import Allowance
from waggle.net.pace import Pace
from waggle.net.wire import MAX_FRAME_BYTES, Reply, Rude

FRAMES, REQUEST = b"F", b"R"
LENGTH_BYTES = 4
HEADER_BYTES = 28
"""Of IPv4 and UDP, before every datagram."""
_READ_BYTES = 1 << 18
REPLY_HEAD = 9
"""One byte that says whether all went well, and the length of what follows."""
MAX_STREAMS, MAX_ASKED = 16, 48
"""Requests of one peer that are answered at once, and that are there at once; one more ends the link."""
BROKEN_PER_S, BROKEN_AT_ONCE = 0.1, 20.0
"""Requests of one peer that may come to no end, on average and in a burst."""


@lru_cache(maxsize=1)
def iroh_module() -> Any:
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


def said(error: BaseException) -> str:
    """What an error of iroh's says: its text is empty."""
    return str(error.message()) if hasattr(error, "message") else str(error) or type(error).__name__


async def write(sender: Any, data: bytes, pace: Pace) -> None:
    """Write at the wire's pace."""
    for first in range(0, len(data), pace.piece_bytes):
        piece = data[first : first + pace.piece_bytes]
        await pace.send(len(piece))
        await sender.write_all(piece)


async def _came(awaited: Awaitable[Any]) -> bool:
    try:
        await awaited
    except iroh_module().IrohError:
        return False
    return True


class IrohLink:
    """One connection. Fills `Link`."""

    def __init__(self, connection: Any, pace: Pace, origin: str, dialled: bool) -> None:
        self.peer, self.origin, self.dialled = bytes(connection.remote_id().to_bytes()), origin, dialled
        self._connection, self._pace = connection, pace
        self.received_bytes = self.num_asked = 0
        self.turns = asyncio.Semaphore(MAX_STREAMS)
        """Of requests that are answered at once."""
        self.broken = Allowance(BROKEN_PER_S, BROKEN_AT_ONCE, SystemClock())
        """Of requests that come to no end."""
        self.closed = False
        """Whether this end has closed it."""
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

    @property
    def wire_bytes(self) -> int:
        """What the connection carried so far, both ways, headers included."""
        seen = self._connection.stats()
        datagrams = seen.udp_tx_datagrams + seen.udp_rx_datagrams
        return int(seen.udp_tx_bytes + seen.udp_rx_bytes + HEADER_BYTES * datagrams)

    async def next_stream(self) -> Any:
        """The next stream that the peer opens, or None once the link is gone."""
        try:
            return await self._connection.accept_bi()
        except iroh_module().IrohError:
            self._ready.set()
            return None

    async def one_way(self) -> bool:
        """Whether a stream came that goes one way; False once the link is gone."""
        return await _came(self._connection.accept_uni())

    async def datagram(self) -> bool:
        """Likewise of a datagram."""
        return await _came(self._connection.read_datagram())

    async def send(self, frames: Sequence[bytes]) -> None:
        async with self._sending:
            data = b"".join(len(frame).to_bytes(LENGTH_BYTES, "big") + frame for frame in frames)
            await self._frame_stream()
            try:
                await write(self._sender, data, self._pace)
            except iroh_module().IrohError as error:
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
            except iroh_module().IrohError as error:
                raise NetworkError(self._why(error)) from error
            if not data:
                raise NetworkError(self._why(None))
            self._buffer += data
            self.received_bytes += len(data)
            self._split()
        return self._frames.popleft()

    def _split(self) -> None:
        """Cut whole frames from the buffer."""
        while len(self._buffer) >= LENGTH_BYTES:
            size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise Rude("too-large", f"a frame of {size} bytes; at most {MAX_FRAME_BYTES} are read")
            if len(self._buffer) < LENGTH_BYTES + size:
                return
            self._frames.append(bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + size]))
            del self._buffer[: LENGTH_BYTES + size]

    async def ask(self, body: bytes, max_reply_bytes: int) -> Reply:
        try:
            stream = await self._connection.open_bi()
            await write(stream.send(), REQUEST + body, self._pace)
            await stream.send().finish()
            head = await stream.recv().read_exact(REPLY_HEAD)
            size = int.from_bytes(head[1:], "big")
            if size > max_reply_bytes:
                raise NetworkError(f"an answer of {size} bytes; at most {max_reply_bytes} are accepted")
            return Reply(head[0] == 1, await self._read(stream.recv(), size))
        except iroh_module().IrohError as error:
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
        return bytes(data)

    def _why(self, error: BaseException | None) -> str:
        reason = self._connection.close_reason()
        return f"the connection is gone ({reason or (said(error) if error else 'closed')})"

    def close(self, why: str) -> None:
        self.closed = True
        self._connection.close(0, why.encode()[:200])
        self._ready.set()
