"""The address book: who can be reached where, in records that their owners signed and that expire.

A record is one peer's own word on its addresses. It is passed on by anybody and believed from nobody but its owner:
a signature that does not hold, a time that has passed or lies too far ahead, and an older record than the one known
are refused. Two records of one time with different addresses prove a peer that tells different stories; the first is
kept. The book is bounded, forgets at random (so that nobody can fill it by being last), and lives on disk, so that a
node that comes back needs nobody's help.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError, RunError
from waggle.core.files import write_atomic
from waggle.core.keys import Key, verify
from waggle.core.types import Count, Noun, Peer, PeerId, Signature
from waggle.net.transport import MAX_ADDRESS_CHARS

MAX_RECORDS = 512
LIFE_S = 24 * 3600
"""How long a record holds; its owner signs a new one long before."""
SKEW_S = 600
"""How wrong a peer's clock may be."""
MAX_REST = 10
"""An address that fails again and again is tried once in two to the power of this many seconds."""
_MAX_FILE_BYTES = 1 << 20

Address = Annotated[str, Meta(min_length=1, max_length=MAX_ADDRESS_CHARS)]


class Record(Noun, frozen=True):
    """Where a peer can be reached. Example: `signed(key, "192.0.2.7:4242", 1_700_000_000_000)`."""

    peer: PeerId
    address: Address
    made_ms: Count
    expires_ms: Count
    signature: Signature = b""


class _Page(Noun, frozen=True):
    records: Annotated[tuple[Record, ...], Meta(max_length=MAX_RECORDS)]


def signed(key: Key, address: str, now_ms: int) -> Record:
    """My own record."""
    record = Record(key.id, address, now_ms, now_ms + 1000 * LIFE_S)
    return msgspec.structs.replace(record, signature=key.sign(_head(record)))


def _head(record: Record) -> bytes:
    return b"waggle/address/1\0" + encode(msgspec.structs.replace(record, signature=b""))


class Book:
    """Records by peer, never one's own. Example: `book.add(record, now_ms); book.draw(3, rng, now_s)`."""

    def __init__(self, me: bytes, file: Path | None = None) -> None:
        self._me, self._file = me, file
        self._records: dict[bytes, Record] = {}
        self._failures: Counter[bytes] = Counter()
        self._rests_until_s: dict[bytes, float] = {}
        self.counts: Counter[str] = Counter()
        """Records that were refused, by reason."""

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._records

    def add(self, record: Record, now_ms: int, rng: np.random.Generator) -> bool:
        """Take in a record. False where it says nothing new or is refused, which is counted."""
        if record.peer == self._me:
            return False
        known = self._records.get(record.peer)
        if known and record.made_ms <= known.made_ms:
            if record.made_ms == known.made_ms and record.address != known.address and _is_signed(record):
                self.counts["two-stories"] += 1
            return False
        reason = _why_not(record, now_ms)
        if reason:
            self.counts[reason] += 1
            return False
        self._records[record.peer] = record
        if known is None or known.address != record.address:
            self.worked(record.peer)  # a new address deserves a new try
        while len(self._records) > MAX_RECORDS:
            others = [peer for peer in self._records if peer != record.peer]
            self.forget(others[int(rng.integers(len(others)))])
        return True

    def get(self, peer: bytes) -> Peer | None:
        """Where a peer is said to be."""
        record = self._records.get(peer)
        return Peer(peer, record.address) if record else None

    def draw(self, num: int, rng: np.random.Generator, now_s: float, without: Collection[bytes] = ()) -> list[Peer]:
        """At most so many peers at random that do not rest from a failure."""
        self._expire(int(now_s * 1000))
        rest = self._rests_until_s
        ready = sorted(p for p in self._records if p not in without and rest.get(p, 0.0) <= now_s)
        picks = rng.permutation(len(ready))[:num].tolist()
        return [Peer(ready[i], self._records[ready[i]].address) for i in picks]

    def sample(self, num: int, rng: np.random.Generator) -> tuple[Record, ...]:
        """Records to tell others."""
        peers = sorted(self._records)
        return tuple(self._records[peers[i]] for i in rng.permutation(len(peers))[:num].tolist())

    def failed(self, peer: bytes, now_s: float) -> None:
        """A peer could not be reached there; it rests, twice as long each time."""
        self._failures[peer] += 1
        self._rests_until_s[peer] = now_s + 2 ** min(self._failures[peer], MAX_REST)

    def worked(self, peer: bytes) -> None:
        """A peer was reached."""
        self._failures.pop(peer, None)
        self._rests_until_s.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """Drop what is known of a peer."""
        self._records.pop(peer, None)
        self.worked(peer)

    def _expire(self, now_ms: int) -> None:
        for peer in [peer for peer, record in self._records.items() if record.expires_ms <= now_ms]:
            self.forget(peer)

    def save(self) -> None:
        """Write the book to its file, if it has one.

        Raises:
            RunError: the disk refuses.
        """
        if self._file is not None:
            write_atomic(self._file, encode(_Page(tuple(self._records.values()))))

    def keep(self) -> None:
        """Save it; a disk that refuses costs a later start its addresses and nothing now, and is counted."""
        try:
            self.save()
        except RunError:
            self.counts["unsaved"] += 1

    def load(self, now_ms: int, rng: np.random.Generator) -> None:
        """Read the file, if there is one; what does not hold any more is left out. A damaged file is an empty book."""
        if self._file is None or not self._file.exists():
            return
        try:
            page = decode(_Page, self._file.read_bytes(), _MAX_FILE_BYTES)
        except DecodeError:
            self.counts["damaged-book"] += 1
            return
        for record in page.records:
            self.add(record, now_ms, rng)


def _why_not(record: Record, now_ms: int) -> str:
    """Why a record is refused, or nothing."""
    if record.expires_ms <= now_ms:
        return "expired"
    if record.made_ms > now_ms + 1000 * SKEW_S or record.expires_ms > record.made_ms + 1000 * LIFE_S:
        return "future"
    return "" if _is_signed(record) else "signature"


def _is_signed(record: Record) -> bool:
    return verify(record.peer, _head(record), record.signature)
