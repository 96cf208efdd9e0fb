"""Blobs by network: a large file comes from several peers at once, and none of them has to be believed.

The chunk of 1 MiB (core/blob.py) is the unit of checking, blame and resuming: all of it comes from one provider, so
that a wrong one shows who lied. The piece, a part of a chunk, is the unit of asking, so that one deadline, `PIECE_S`,
suits every link: at 64 kbit/s a chunk takes 131 s and the least piece 2 s, or 16 s where eight share the link.

How much a provider is asked for at a time is its pace. It starts at the least piece, doubles once a round trip while
answers come within `QUICK_S`, and halves when they take longer than `SLOW_S`: first in pieces of 64 KiB, then in up
to four requests at once, then in larger pieces up to a chunk. So a slow provider has little in hand, and a fast one is
kept busy whatever its latency. Nobody is waited for at the end: a chunk that has been in hand for much longer than
others took is asked for elsewhere, too, and the first to bring it counts.

Left out: giving on what is only partly here, and asking for the rarest first. Providers have the whole blob.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from msgspec import Meta

from waggle.core.blob import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_MANIFEST_BYTES, BlobStore, Manifest
from waggle.core.clock import Clock
from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError, NetworkError, RunError
from waggle.core.keys import peer_name
from waggle.core.types import Count, Digest, Noun
from waggle.net.deadline import deadline
from waggle.net.tasks import Tasks
from waggle.net.transport import Transport

PROTO = "waggle/blob/1"
PROVIDERS = 8
"""Providers that are asked at a time; others take the place of those who are dropped."""
LEAST_BYTES, PIECE_BYTES = 16 << 10, 64 << 10
"""The least piece, and the one from which on several are asked for at once."""
LANES = 4
"""The most requests to one provider at a time."""
PIECE_S = 60.0
"""How long a provider may take for a piece, or for the manifest."""
QUICK_S, SLOW_S = 4.0, 16.0
"""An answer that took less makes the pace twice as high; one that took more halves it."""
LEAST_LATE_S, LATE_S = 1.0, 10.0
"""Where no other is left, a chunk may be asked for a second time after so long: four times what chunks usually take."""
MAX_FAILURES, REST_S = 5, 2.0
"""A provider that fails so often in a row is dropped; until then it rests, twice as long each time."""
ASKED_FIRST = 3
"""Providers that are asked for the manifest at a time."""
_LOOK_S = 0.5
"""How often rests and late chunks are looked at."""
_MAX_ASK_BYTES = 256


class Contents(Noun, frozen=True, tag="contents"):
    """A request for a blob's manifest."""

    blob: Digest


class Piece(Noun, frozen=True, tag="piece"):
    """A request for a part of a blob. Example: `Piece(b"..32..", 1 << 20, 65536)`."""

    blob: Digest
    offset: Count
    size_bytes: Annotated[int, Meta(ge=1, le=CHUNK_BYTES)]


class Ask(Noun, frozen=True):
    """A request's body. The answer is the manifest's canonical bytes, or the bytes of the piece."""

    what: Contents | Piece


def serve_blobs(transport: Transport, store: BlobStore, shared: Collection[bytes]) -> None:
    """Answer requests for the blobs whose ids are in `shared` at that time, and for no others."""

    async def answer(caller: bytes, body: bytes) -> bytes:
        what = decode(Ask, body, _MAX_ASK_BYTES).what
        if what.blob not in shared or not store.has(what.blob):
            raise NetworkError(f"the blob {_short(what.blob)} is not shared here")
        try:
            if isinstance(what, Piece):
                return store.read(what.blob, what.offset, what.size_bytes)
            return encode(_whole(store, what.blob))
        except RunError as error:  # its message has a path in it, which is nobody's business
            raise NetworkError(f"the blob {_short(what.blob)} cannot be read here") from error

    transport.serve(PROTO, answer)


def _whole(store: BlobStore, blob: bytes) -> Manifest:
    manifest = store.manifest(blob)
    if manifest is None:
        raise RunError(f"the manifest of the blob {_short(blob)} is lost or damaged; put the blob in again")
    return manifest


def _short(blob: bytes) -> str:
    return blob.hex()[:12]


class Fetched(NamedTuple):
    """What came of a fetch. Example: `Fetched({b"..32..": 2_097_152}, (), (), 1)`."""

    bytes_from: dict[bytes, int]
    """Bytes of right chunks by provider, for those who gave any."""
    lied: tuple[bytes, ...]
    """Providers that gave wrong bytes, and were dropped at once."""
    failed: tuple[bytes, ...]
    """Providers that were dropped since they failed too often."""
    num_resumed: int
    """Chunks that were here already."""


async def fetch(
    transport: Transport,
    peers: Sequence[bytes],
    blob: bytes,
    store: BlobStore,
    clock: Clock,
    *,
    timeout_s: float,
    max_bytes: int = MAX_BLOB_BYTES,
) -> Fetched:
    """Bring a blob into the store from these peers, or the rest of it where a part is there already.

    Chunks are kept as they come: a fetch that fails or is cancelled goes on at the next call, in another process as
    well. Those who lie and those who are dropped are counted as `blob-lied` and `blob-failed` in `transport.counts`.

    Args:
        peers: who may have it; the first ones are asked first.
        blob: the id.
        timeout_s: for the whole.
        max_bytes: a larger blob is not fetched.

    Raises:
        NetworkError: not all of it came: no provider is left, or the time is over. It names the blob, how many chunks
            are missing, and what went wrong last.
        RunError: the store cannot be written.
    """
    fetching = _Fetch(transport, peers, blob, store, clock)
    if not store.has(blob):
        try:
            async with deadline(clock, timeout_s, "all of it"):
                await fetching.run(max_bytes)
        except NetworkError as error:
            raise fetching.failure(error) from error
        finally:
            await fetching.tasks.cancel()
        store.finish(blob)
    return fetching.result()


@dataclass
class _Provider:
    """A peer that may have the blob, and what is known of it."""

    peer: bytes
    pace_bytes: int = LEAST_BYTES
    failures: int = 0
    """In a row."""
    failed_s: float = -1.0
    rests_until_s: float = 0.0
    gone: str = ""
    """Why it is asked no more: `lied` or `failed`."""
    given_bytes: int = 0
    in_hand: dict[int, float] = field(default_factory=dict)
    """Chunks it is asked for, and since when."""
    begun: dict[int, bytearray] = field(default_factory=dict)
    """What it gave of chunks so far, kept while it rests."""

    @property
    def piece_bytes(self) -> int:
        return min(self.pace_bytes, max(PIECE_BYTES, self.pace_bytes // LANES))

    @property
    def lanes(self) -> int:
        """Chunks it may have in hand: one until it has given one that is right, so that a lie costs no more."""
        return self.pace_bytes // self.piece_bytes if self.given_bytes else 1

    def took(self, seconds: float, pace_bytes: int) -> None:
        """Set the pace after an answer to what was asked at `pace_bytes`; what was asked before a change counts not."""
        if pace_bytes == self.pace_bytes:
            if seconds < QUICK_S:
                self.pace_bytes = min(LANES * CHUNK_BYTES, 2 * pace_bytes)
            elif seconds > SLOW_S:
                self.pace_bytes = max(LEAST_BYTES, pace_bytes // 2)

    def failed(self, asked_s: float, now_s: float) -> None:
        """Rest, or be gone. Requests that fail together are one failure."""
        if asked_s < self.failed_s:
            return
        self.failures, self.failed_s, self.pace_bytes = self.failures + 1, now_s, LEAST_BYTES
        self.rests_until_s = now_s + REST_S * 2 ** (self.failures - 1)
        if self.failures >= MAX_FAILURES:
            self.gone = "failed"


class _Fetch:
    """One fetch: who is asked for what. Who gets which chunk is decided in `_hand_out`, between two waits."""

    def __init__(
        self, transport: Transport, peers: Sequence[bytes], blob: bytes, store: BlobStore, clock: Clock
    ) -> None:
        self._transport, self._blob, self._store, self._clock = transport, blob, store, clock
        self._providers = [_Provider(peer) for peer in dict.fromkeys(peers) if peer != transport.id]
        self._manifest = store.manifest(blob)
        self._wanted: set[int] = set()
        self._free: deque[int] = deque()
        """Wanted chunks that nobody has in hand, in their order."""
        self._usual_s = LATE_S / 4
        """How long a chunk takes, a moving average."""
        self._last = ""
        """What went wrong last."""
        self.num_resumed = len(self._manifest.chunks) if self._manifest else 0
        self.tasks = Tasks()

    async def run(self, max_bytes: int) -> None:
        """All but the finish. Raises NetworkError where it cannot go on."""
        self._manifest = manifest = self._manifest or await self._learn()
        self._wanted.update(range(len(manifest.chunks)))
        if manifest.size_bytes > max_bytes:
            raise NetworkError(f"it has {manifest.size_bytes} bytes; at most {max_bytes} are accepted")
        self._store.begin(manifest)
        for number in sorted(self._wanted):
            if self._store.holds(self._blob, number):
                self._wanted.discard(number)
            await asyncio.sleep(0)  # to look takes a millisecond, and there may be thousands
        self._free.extend(sorted(self._wanted))
        self.num_resumed = len(manifest.chunks) - len(self._wanted)
        await self._gather(manifest)

    def result(self) -> Fetched:
        """What came of it."""
        given = {provider.peer: provider.given_bytes for provider in self._providers if provider.given_bytes}
        lied, failed = ([p.peer for p in self._providers if p.gone == why] for why in ("lied", "failed"))
        return Fetched(given, tuple(lied), tuple(failed), self.num_resumed)

    def failure(self, error: NetworkError) -> NetworkError:
        """What the caller is told where it cannot go on."""
        total = len(self._manifest.chunks) if self._manifest else 0
        missing = f"{len(self._wanted)} of {total} chunks are missing" if total else "its manifest is missing"
        last = f" (last: {self._last})" if self._last else ""
        return NetworkError(
            f"the blob {_short(self._blob)} could not be fetched, {missing}: {error}{last}; "
            "what came is kept, so try again later or name other peers"
        )

    async def _learn(self) -> Manifest:
        """The manifest, from the first that gives the right one."""
        waiting = iter(self._providers)
        walks = {self.tasks.begin(self._walk(waiting)) for _ in range(ASKED_FIRST)}
        while walks:
            done, walks = await asyncio.wait(walks, return_when=asyncio.FIRST_COMPLETED)
            for manifest in [walk.result() for walk in done]:
                if manifest:
                    await self.tasks.cancel()
                    return manifest
        raise _nobody_left()

    async def _walk(self, waiting: Iterator[_Provider]) -> Manifest | None:
        for provider in waiting:
            while not provider.gone:
                await self._clock.sleep(provider.rests_until_s - self._clock.passed_s())
                data = await self._ask(provider, Contents(self._blob), MAX_MANIFEST_BYTES)
                if data is None:
                    continue
                with contextlib.suppress(DecodeError):
                    manifest = decode(Manifest, data, MAX_MANIFEST_BYTES)
                    if manifest.id == self._blob:
                        return manifest
                self._lied(provider, "gave another manifest")
        return None

    async def _gather(self, manifest: Manifest) -> None:
        """All chunks that are wanted."""
        running: set[asyncio.Task[None]] = set()
        look = self.tasks.begin(self._clock.sleep(_LOOK_S))
        while self._wanted:
            running |= {self.tasks.begin(self._bring(manifest, *handed)) for handed in self._hand_out()}
            if not running and all(provider.gone for provider in self._providers):
                raise _nobody_left()
            done, _ = await asyncio.wait({*running, look}, return_when=asyncio.FIRST_COMPLETED)
            for error in [task.exception() for task in done]:  # the store's; of all, so that none goes unread
                if error:
                    raise error
            running -= done
            if look in done:
                look = self.tasks.begin(self._clock.sleep(_LOOK_S))

    def _hand_out(self) -> Iterator[tuple[_Provider, int]]:
        """Give every provider as many chunks as its pace allows."""
        now_s = self._clock.passed_s()
        for provider in [provider for provider in self._providers if not provider.gone][:PROVIDERS]:
            while provider.rests_until_s <= now_s and len(provider.in_hand) < provider.lanes:
                number = self._next(provider, now_s)
                if number is None:
                    break
                provider.in_hand[number] = now_s
                yield provider, number

    def _next(self, provider: _Provider, now_s: float) -> int | None:
        """Which chunk a provider is to give next: one it has begun, one nobody has in hand, or one that is late."""
        for number in provider.begun:
            if number in self._free:
                self._free.remove(number)
                return number
        if self._free:
            return self._free.popleft()
        late_s = now_s - min(LATE_S, max(LEAST_LATE_S, 4 * self._usual_s))
        handed_s = {number: since_s for number, since_s in self._handed().items() if number not in provider.in_hand}
        return min((n for n, since_s in handed_s.items() if since_s <= late_s), key=handed_s.__getitem__, default=None)

    def _handed(self) -> dict[int, float]:
        """When each chunk in hand was last given to a provider."""
        given = [item for provider in self._providers for item in provider.in_hand.items()]
        return dict(sorted(given, key=lambda item: item[1]))

    async def _bring(self, manifest: Manifest, provider: _Provider, number: int) -> None:
        """One chunk from one provider, piece by piece, until it is there, be it from another."""
        size_bytes = manifest.chunk_bytes(number)
        data = provider.begun.setdefault(number, bytearray())
        try:
            while len(data) < size_bytes:
                num_bytes, pace_bytes = min(provider.piece_bytes, size_bytes - len(data)), provider.pace_bytes
                asked_s = self._clock.passed_s()
                what = Piece(self._blob, number * CHUNK_BYTES + len(data), num_bytes)
                piece = await self._ask(provider, what, num_bytes)
                if piece is None or provider.gone or number not in self._wanted:
                    return
                if len(piece) != num_bytes:
                    self._lied(provider, f"gave {len(piece)} bytes for {num_bytes}")
                    return
                provider.took(self._clock.passed_s() - asked_s, pace_bytes)
                data += piece
            if self._store.write(self._blob, number, bytes(data)):
                self._arrived(provider, number, size_bytes)
            else:
                self._lied(provider, f"gave a wrong chunk {number}")
        finally:
            self._let_go(provider, number)

    def _arrived(self, provider: _Provider, number: int, size_bytes: int) -> None:
        provider.given_bytes += size_bytes
        self._usual_s += 0.2 * (self._clock.passed_s() - provider.in_hand[number] - self._usual_s)
        self._wanted.discard(number)
        for other in self._providers:
            other.begun.pop(number, None)

    def _let_go(self, provider: _Provider, number: int) -> None:
        """A provider has a chunk in hand no more; where it is still wanted and in no other hand, it is free."""
        del provider.in_hand[number]
        if number in self._wanted and not any(number in other.in_hand for other in self._providers):
            self._free.appendleft(number)

    async def _ask(self, provider: _Provider, what: Contents | Piece, max_bytes: int) -> bytes | None:
        """The answer, or None where there is none, which is counted."""
        asked_s = self._clock.passed_s()
        try:
            body = encode(Ask(what))
            reply = await self._transport.request(
                provider.peer, PROTO, body, timeout_s=PIECE_S, max_reply_bytes=max_bytes
            )
        except NetworkError as error:
            if not provider.gone:
                self._last = str(error)
                provider.failed(asked_s, self._clock.passed_s())
                self._transport.counts["blob-failed"] += bool(provider.gone)
            return None
        provider.failures = 0
        return reply

    def _lied(self, provider: _Provider, what: str) -> None:
        """Drop a provider."""
        provider.gone = "lied"
        provider.begun.clear()
        self._last = f"{peer_name(provider.peer)} {what}"
        self._transport.counts["blob-lied"] += 1


def _nobody_left() -> NetworkError:
    return NetworkError("nobody is left who could give it")
