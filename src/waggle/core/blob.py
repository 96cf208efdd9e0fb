"""Blobs: large files known by their content, in chunks that are checked one by one.

A blob's manifest lists its size and the SHA-256 of each chunk of 1 MiB; the digest of the manifest is the blob's id. So
whoever knows the id can check the manifest, and then every chunk alone, from whomever it came and in any order. A
hash tree (BLAKE3 as in Bao, RFC 6962) would do without the list, which for the largest blob is 136 KiB: one reply.

A store keeps whole blobs to read and partial ones to fill. How much of a partial blob is there is written down nowhere:
it is what hashes right. Left out: several blobs that share chunks, deletion, and reading of partial blobs.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

from msgspec import Meta

from waggle.core.codec import decode, digest, encode
from waggle.core.errors import DecodeError, RunError
from waggle.core.files import disk_errors, sync_folder, write_atomic
from waggle.core.types import Digest, Noun

CHUNK_BYTES = 1 << 20
"""Every chunk has so many bytes, but for the last one, which may have fewer."""
MAX_BLOB_BYTES = 4 << 30
MAX_MANIFEST_BYTES = 160 << 10
"""The largest manifest's canonical bytes, with some room."""


class Manifest(Noun, frozen=True):
    """What a blob consists of. Example: `Manifest(1_500_000, (b"..32..", b"..32.."))`."""

    size_bytes: Annotated[int, Meta(ge=0, le=MAX_BLOB_BYTES)]
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_BLOB_BYTES // CHUNK_BYTES)]
    """SHA-256 of each chunk."""

    def __post_init__(self) -> None:
        num = -(-self.size_bytes // CHUNK_BYTES)
        if len(self.chunks) != num or not 0 <= self.size_bytes <= MAX_BLOB_BYTES:
            raise ValueError(
                f"{len(self.chunks)} chunks for {self.size_bytes} bytes; need {num}, and at most {MAX_BLOB_BYTES} bytes"
            )

    @property
    def id(self) -> bytes:
        """What the blob is known by, 32 bytes."""
        return digest(self)

    def chunk_bytes(self, number: int) -> int:
        """The size of a chunk."""
        return min(CHUNK_BYTES, self.size_bytes - number * CHUNK_BYTES)

    def fits(self, number: int, data: bytes) -> bool:
        """Whether these bytes are that chunk."""
        return len(data) == self.chunk_bytes(number) and hashlib.sha256(data).digest() == self.chunks[number]


def manifest_of(chunks: Iterable[bytes]) -> Manifest:
    """The manifest of a blob that comes chunk by chunk.

    Raises:
        ValueError: larger than `MAX_BLOB_BYTES`.
    """
    size_bytes, digests = 0, []
    for chunk in chunks:
        size_bytes += len(chunk)
        digests.append(hashlib.sha256(chunk).digest())
    return Manifest(size_bytes, tuple(digests))


def chunks_of(data: bytes) -> Iterator[bytes]:
    """The chunks of bytes that are all there."""
    return (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))


def blob_id(data: bytes) -> bytes:
    """The id of the blob with this content, 32 bytes."""
    return manifest_of(chunks_of(data)).id


class BlobStore(Protocol):
    """Where blobs are kept, by id. Whole ones can be read; partial ones are begun, filled and finished.

    Everything is done when a method returns; those of whole blobs and `finish` take time with the blob's size.
    What cannot be read or written raises RunError, as does a blob that is not there.
    """

    def put(self, data: bytes) -> bytes:
        """Keep these bytes. Returns the id."""
        ...

    def put_file(self, file: Path) -> bytes:
        """Keep a copy of a file, which is never in memory as a whole. Returns the id."""
        ...

    def has(self, blob: bytes) -> bool:
        """Whether the whole blob is here."""
        ...

    def manifest(self, blob: bytes) -> Manifest | None:
        """Of a blob that is here or was begun; None for others."""
        ...

    def read(self, blob: bytes, offset: int, size_bytes: int) -> bytes:
        """A part of a whole blob: exactly so many bytes."""
        ...

    def begin(self, manifest: Manifest) -> None:
        """Make ready to fill a blob. What is there of it already stays."""
        ...

    def holds(self, blob: bytes, number: int) -> bool:
        """Whether a chunk is there: what a partial blob has in its place is read and hashed."""
        ...

    def write(self, blob: bytes, number: int, data: bytes) -> bool:
        """Put a chunk in its place. False, and nothing is written, where these bytes are not that chunk."""
        ...

    def finish(self, blob: bytes) -> None:
        """Make a blob whole; chunks that this store has not seen since it was made are hashed once more.

        Raises:
            RunError: a chunk is missing.
        """
        ...


def not_here(blob: bytes) -> RunError:
    """What a store raises that is asked for what it does not have."""
    return RunError(f"the blob {blob.hex()[:12]} is not here; fetch it from a peer first")


class _Partial:
    """A blob that is being filled: its manifest, and the chunks that were checked since the store was made."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.seen: set[int] = set()

    def need_all(self, blob: bytes) -> None:
        missing = len(self.manifest.chunks) - len(self.seen)
        if missing:
            raise RunError(f"the blob {blob.hex()[:12]} is not whole, {missing} chunks are missing; fetch it again")


class MemoryBlobs:
    """The in-memory twin. Fills `BlobStore`."""

    def __init__(self) -> None:
        self._whole: dict[bytes, tuple[Manifest, bytes]] = {}
        self._partial: dict[bytes, _Partial] = {}
        self._chunks: dict[bytes, dict[int, bytes]] = {}

    def put(self, data: bytes) -> bytes:
        manifest = manifest_of(chunks_of(data))
        self._whole[manifest.id] = manifest, bytes(data)
        return manifest.id

    def put_file(self, file: Path) -> bytes:
        return self.put(b"".join(_read_chunks(file)))

    def has(self, blob: bytes) -> bool:
        return blob in self._whole

    def manifest(self, blob: bytes) -> Manifest | None:
        if blob in self._whole:
            return self._whole[blob][0]
        return self._partial[blob].manifest if blob in self._partial else None

    def read(self, blob: bytes, offset: int, size_bytes: int) -> bytes:
        if blob not in self._whole:
            raise not_here(blob)
        return _exactly(self._whole[blob][1][offset : offset + size_bytes], size_bytes, blob.hex()[:12])

    def begin(self, manifest: Manifest) -> None:
        self._partial.setdefault(manifest.id, _Partial(manifest))
        self._chunks.setdefault(manifest.id, {})

    def holds(self, blob: bytes, number: int) -> bool:
        return blob in self._whole or number in self._begun(blob).seen

    def write(self, blob: bytes, number: int, data: bytes) -> bool:
        if blob in self._whole:
            return self._whole[blob][0].fits(number, data)
        partial = self._begun(blob)
        if not partial.manifest.fits(number, data):
            return False
        self._chunks[blob][number] = bytes(data)
        partial.seen.add(number)
        return True

    def finish(self, blob: bytes) -> None:
        if blob not in self._whole:
            self._begun(blob).need_all(blob)
            chunks = self._chunks[blob]
            self._whole[blob] = self._partial[blob].manifest, b"".join(chunks[number] for number in sorted(chunks))
        self._partial.pop(blob, None)
        self._chunks.pop(blob, None)

    def _begun(self, blob: bytes) -> _Partial:
        if blob not in self._partial:
            raise not_here(blob)
        return self._partial[blob]


class DiskBlobs:
    """Blobs in a folder. Fills `BlobStore`.

    A whole blob is a file named by its id in hex, its manifest stands beside it, and a partial blob is a sparse file
    `.part`. Several processes may fill the same blob in one folder: all of them write the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial: dict[bytes, _Partial] = {}

    def path(self, blob: bytes) -> Path:
        """Where the whole blob is or will be."""
        return self._folder / blob.hex()

    def put(self, data: bytes) -> bytes:
        manifest = manifest_of(chunks_of(data))
        self._keep_manifest(manifest)
        write_atomic(self.path(manifest.id), data)
        return manifest.id

    def put_file(self, file: Path) -> bytes:
        temporary = self._folder / f".{file.name[:100]}.{os.getpid()}.tmp"
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "wb") as copy:
                    manifest = manifest_of(_copied(_read_chunks(file), copy.write))
                    copy.flush()
                    os.fsync(copy.fileno())
                self._keep_manifest(manifest)
                os.replace(temporary, self.path(manifest.id))
                sync_folder(self._folder)
            finally:
                temporary.unlink(missing_ok=True)
        return manifest.id

    def has(self, blob: bytes) -> bool:
        return self.path(blob).is_file()

    def manifest(self, blob: bytes) -> Manifest | None:
        try:
            manifest = decode(Manifest, self._manifest_file(blob).read_bytes(), MAX_MANIFEST_BYTES)
        except (OSError, DecodeError):
            return None
        return manifest if manifest.id == blob else None

    def read(self, blob: bytes, offset: int, size_bytes: int) -> bytes:
        if not self.has(blob):
            raise not_here(blob)
        return _exactly(_read(self.path(blob), offset, size_bytes), size_bytes, str(self.path(blob)))

    def begin(self, manifest: Manifest) -> None:
        self._keep_manifest(manifest)
        self._partial.setdefault(manifest.id, _Partial(manifest))

    def holds(self, blob: bytes, number: int) -> bool:
        if self.has(blob):
            return True
        partial = self._begun(blob)
        size_bytes = partial.manifest.chunk_bytes(number)
        part = self._part_file(blob)
        data = _read(part, number * CHUNK_BYTES, size_bytes) if part.is_file() else b""
        there = partial.manifest.fits(number, data)
        (partial.seen.add if there else partial.seen.discard)(number)
        return there

    def write(self, blob: bytes, number: int, data: bytes) -> bool:
        partial = self._begun(blob)
        if not partial.manifest.fits(number, data):
            return False
        if not self.has(blob):  # another process may have finished it
            with disk_errors(self._part_file(blob)):
                _write(self._part_file(blob), number * CHUNK_BYTES, data)
            partial.seen.add(number)
        return True

    def finish(self, blob: bytes) -> None:
        part = self._part_file(blob)
        if not self.has(blob):
            partial = self._begun(blob)
            for number in set(range(len(partial.manifest.chunks))) - partial.seen:
                self.holds(blob, number)
            partial.need_all(blob)
            with disk_errors(part):
                _end_at(part, partial.manifest.size_bytes)
                os.replace(part, self.path(blob))
                sync_folder(self._folder)
        with disk_errors(part):
            part.unlink(missing_ok=True)
        self._partial.pop(blob, None)

    def _begun(self, blob: bytes) -> _Partial:
        if blob not in self._partial:
            manifest = self.manifest(blob)
            if manifest is None:
                raise not_here(blob)
            self._partial[blob] = _Partial(manifest)
        return self._partial[blob]

    def _keep_manifest(self, manifest: Manifest) -> None:
        """Written before the blob, so that a whole blob always has it."""
        if self.manifest(manifest.id) is None:
            with disk_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._manifest_file(manifest.id), encode(manifest))

    def _manifest_file(self, blob: bytes) -> Path:
        return self._folder / f"{blob.hex()}.manifest"

    def _part_file(self, blob: bytes) -> Path:
        return self._folder / f"{blob.hex()}.part"


def _read(file: Path, offset: int, size_bytes: int) -> bytes:
    try:
        with open(file, "rb") as handle:
            handle.seek(offset)
            return handle.read(size_bytes)
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror or error}; check the disk and the file's owner") from error


def _write(file: Path, offset: int, data: bytes) -> None:
    """Write and sync: a megabyte at a time holds nobody up, and leaves little to wait for at the end."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as handle:
        handle.seek(offset)
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def _end_at(file: Path, size_bytes: int) -> None:
    """Cut off what lies behind the end of a blob. An empty one has had no chunk to make the file for."""
    with open(file, "r+b" if size_bytes else "ab") as handle:
        if os.fstat(handle.fileno()).st_size < size_bytes:
            raise RunError(f"somebody has changed {file} while it was filled; fetch the blob again")
        handle.truncate(size_bytes)
        os.fsync(handle.fileno())


def _read_chunks(file: Path) -> Iterator[bytes]:
    try:
        if file.stat().st_size > MAX_BLOB_BYTES:
            raise RunError(f"{file} has {file.stat().st_size} bytes; a blob has at most {MAX_BLOB_BYTES}")
        with open(file, "rb") as handle:
            while chunk := handle.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror or error}; check the path and its owner") from error


def _copied(chunks: Iterable[bytes], write: Callable[[bytes], object]) -> Iterator[bytes]:
    for chunk in chunks:
        write(chunk)
        yield chunk


def _exactly(data: bytes, size_bytes: int, where: str) -> bytes:
    """All of what was asked for.

    Raises:
        RunError: there is less.
    """
    if len(data) != size_bytes:
        raise RunError(f"{where} has {len(data)} bytes where {size_bytes} were asked for; it is damaged or shorter")
    return data
