"""Blobs: the manifest vouches for every byte, and both stores keep one contract."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waggle.core import blob as blobs
from waggle.core.blob import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    MAX_MANIFEST_BYTES,
    BlobStore,
    DiskBlobs,
    Manifest,
    MemoryBlobs,
    blob_id,
    chunks_of,
    manifest_of,
)
from waggle.core.codec import VERSION, decode, digest, encode
from waggle.core.errors import DecodeError, RunError

DATA = b"".join(bytes([number]) * CHUNK_BYTES for number in range(3)) + b"the rest"
"""Four chunks."""
BLOB = blob_id(DATA)
MOST = MAX_BLOB_BYTES // CHUNK_BYTES
sizes = st.builds(lambda num, rest: max(0, num * CHUNK_BYTES + rest), st.integers(0, 2), st.integers(-2, 2))


@settings(max_examples=15)
@example(0)
@example(CHUNK_BYTES)
@given(sizes)
def test_chunks_make_up_the_blob_and_each_is_known(size_bytes: int) -> None:
    data = bytes(range(256)) * (size_bytes // 256 + 1)
    data = data[:size_bytes]
    chunks = list(chunks_of(data))
    manifest = manifest_of(chunks)
    assert b"".join(chunks) == data
    assert [len(chunk) for chunk in chunks] == [manifest.chunk_bytes(number) for number in range(len(chunks))]
    assert all(manifest.fits(number, chunk) for number, chunk in enumerate(chunks))
    assert not any(manifest.fits(number, chunk + b"x") for number, chunk in enumerate(chunks))
    assert decode(Manifest, encode(manifest), MAX_MANIFEST_BYTES) == manifest
    assert manifest.id == digest(manifest) == blob_id(data)


@settings(max_examples=60)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_change_of_any_byte_is_noticed(at: int, change: int) -> None:
    manifest, number = manifest_of(chunks_of(DATA)), at // CHUNK_BYTES
    chunk = bytearray(DATA[number * CHUNK_BYTES :][:CHUNK_BYTES])
    chunk[at % CHUNK_BYTES] ^= change
    assert not manifest.fits(number, bytes(chunk))


def test_the_largest_manifest_fits_a_reply() -> None:
    largest = Manifest(MAX_BLOB_BYTES, (b"\xff" * 32,) * MOST)
    assert len(encode(largest)) <= MAX_MANIFEST_BYTES
    assert decode(Manifest, encode(largest), MAX_MANIFEST_BYTES) == largest


@pytest.mark.parametrize(
    ("size_bytes", "num"),
    [
        (0, 1),
        (1, 0),
        (1, 2),
        (CHUNK_BYTES, 2),
        (CHUNK_BYTES + 1, 1),
        (-1, 0),
        (MAX_BLOB_BYTES + 1, MOST + 1),
        (2**63, 1),
    ],
)
def test_a_manifest_that_does_not_add_up_is_none(size_bytes: int, num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} chunks for {size_bytes} bytes"):
        Manifest(size_bytes, (bytes(32),) * num)
    fields = msgspec.msgpack.encode((size_bytes, (bytes(32),) * num))
    with pytest.raises(DecodeError, match="malformed"):
        decode(Manifest, bytes((VERSION,)) + fields, MAX_MANIFEST_BYTES)


def memory(folder: Path) -> BlobStore:
    return MemoryBlobs()


def disk(folder: Path) -> BlobStore:
    return DiskBlobs(folder / "blobs")


both = pytest.mark.parametrize("make", [memory, disk])
Make = Callable[[Path], BlobStore]


@both
def test_what_is_put_can_be_read(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path)
    assert not store.has(BLOB)
    assert store.manifest(BLOB) is None
    assert store.put(DATA) == store.put(DATA) == BLOB
    assert store.has(BLOB)
    assert store.manifest(BLOB) == manifest_of(chunks_of(DATA))
    assert store.read(BLOB, 0, len(DATA)) == DATA
    assert store.read(BLOB, CHUNK_BYTES - 1, 2) == b"\0\1"
    assert store.read(store.put(b""), 0, 0) == b""


@both
def test_a_file_is_copied(make: Make, tmp_path: Path) -> None:
    store, file = make(tmp_path), tmp_path / "weights"
    file.write_bytes(DATA)
    assert store.put_file(file) == BLOB
    file.write_bytes(b"other")
    assert store.read(BLOB, 0, len(DATA)) == DATA
    with pytest.raises(RunError, match=r"cannot read .*missing: No such file"):
        store.put_file(tmp_path / "missing")


@both
def test_what_is_not_there_is_said(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path)
    for ask in (
        lambda: store.read(BLOB, 0, 1),
        lambda: store.holds(BLOB, 0),
        lambda: store.write(BLOB, 0, DATA),
        lambda: store.finish(BLOB),
    ):
        with pytest.raises(RunError, match=f"the blob {BLOB.hex()[:12]} is not here"):
            ask()
    store.put(DATA)
    for offset, size_bytes in ((len(DATA), 1), (0, len(DATA) + 1), (1 << 40, 1)):
        with pytest.raises(RunError, match=f"bytes where {size_bytes} were asked for"):
            store.read(BLOB, offset, size_bytes)


@both
def test_a_blob_is_filled_in_any_order_with_right_chunks_alone(make: Make, tmp_path: Path) -> None:
    store, chunks = make(tmp_path), list(chunks_of(DATA))
    store.begin(manifest_of(chunks))
    assert store.manifest(BLOB) == manifest_of(chunks)
    assert not store.write(BLOB, 0, chunks[1])
    assert not store.write(BLOB, 3, b"the lies")
    for number in (3, 1, 0):
        assert store.write(BLOB, number, chunks[number])
        store.begin(manifest_of(chunks))  # what is there stays
    assert [store.holds(BLOB, number) for number in range(4)] == [True, True, False, True]
    with pytest.raises(RunError, match="1 chunks are missing"):
        store.finish(BLOB)
    with pytest.raises(RunError, match="is not here"):
        store.read(BLOB, 0, 1)
    assert store.write(BLOB, 2, chunks[2])
    assert not store.has(BLOB)
    store.finish(BLOB)
    assert store.has(BLOB)
    assert store.read(BLOB, 0, len(DATA)) == DATA


@both
def test_a_whole_blob_is_not_filled_again(make: Make, tmp_path: Path) -> None:
    store, chunks = make(tmp_path), list(chunks_of(DATA))
    store.put(DATA)
    store.begin(manifest_of(chunks))
    assert all(store.holds(BLOB, number) for number in range(4))
    assert store.write(BLOB, 0, chunks[0])
    assert not store.write(BLOB, 0, chunks[1])
    store.finish(BLOB)
    assert store.read(BLOB, 0, len(DATA)) == DATA


@both
def test_an_empty_blob_is_whole_once_it_is_finished(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path)
    store.begin(manifest_of([]))
    store.finish(blob_id(b""))
    assert store.read(blob_id(b""), 0, 0) == b""


def test_a_partial_blob_is_what_hashes_right_after_a_crash(tmp_path: Path) -> None:
    chunks = list(chunks_of(DATA))
    store = DiskBlobs(tmp_path)
    store.begin(manifest_of(chunks))
    for number in (0, 1, 3):
        store.write(BLOB, number, chunks[number])
    part = tmp_path / f"{BLOB.hex()}.part"
    with open(part, "r+b") as file:  # a crash tore a chunk, and left something behind the end
        file.seek(CHUNK_BYTES + 5)
        file.write(b"torn")
        file.seek(0, 2)
        file.write(b"more")
    again = DiskBlobs(tmp_path)
    with pytest.raises(RunError, match="2 chunks are missing"):
        again.finish(BLOB)
    assert [again.holds(BLOB, number) for number in range(4)] == [True, False, False, True]
    for number in (1, 2):
        assert again.write(BLOB, number, chunks[number])
    again.finish(BLOB)
    assert (tmp_path / BLOB.hex()).read_bytes() == DATA
    assert sorted(file.name for file in tmp_path.iterdir()) == [BLOB.hex(), f"{BLOB.hex()}.manifest"]


def test_a_damaged_manifest_counts_for_nothing(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    store.put(DATA)
    for damage in (b"", b"junk", encode(manifest_of([b"other"]))):
        (tmp_path / f"{BLOB.hex()}.manifest").write_bytes(damage)
        assert store.manifest(BLOB) is None
    store.begin(manifest_of(chunks_of(DATA)))
    assert store.manifest(BLOB) is not None


def test_two_processes_may_fill_one_folder(tmp_path: Path) -> None:
    chunks = list(chunks_of(DATA))
    one, two = DiskBlobs(tmp_path), DiskBlobs(tmp_path)
    for store in (one, two):
        store.begin(manifest_of(chunks))
    for number, chunk in enumerate(chunks):
        (one if number % 2 else two).write(BLOB, number, chunk)
    one.finish(BLOB)
    assert two.write(BLOB, 0, chunks[0])
    two.finish(BLOB)
    assert (tmp_path / BLOB.hex()).read_bytes() == DATA


def test_a_part_that_somebody_took_away_does_not_become_a_blob(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    store.begin(manifest_of([b"only"]))
    store.write(blob_id(b"only"), 0, b"only")
    part = tmp_path / f"{blob_id(b'only').hex()}.part"
    part.write_bytes(b"on")
    with pytest.raises(RunError, match="somebody has changed"):
        store.finish(blob_id(b"only"))
    part.unlink()
    with pytest.raises(RunError, match="No such file"):
        store.finish(blob_id(b"only"))
    assert not store.has(blob_id(b"only"))


def test_a_disk_that_refuses_is_said_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").write_text("a file")
    blocked, store, file = DiskBlobs(tmp_path / "blocked"), DiskBlobs(tmp_path / "fine"), tmp_path / "data"
    file.write_bytes(DATA)
    for act in (
        lambda: blocked.put(DATA),
        lambda: blocked.put_file(file),
        lambda: blocked.begin(manifest_of(chunks_of(DATA))),
    ):
        with pytest.raises(RunError, match=r"cannot write .*blocked"):
            act()
    store.begin(manifest_of(chunks_of(DATA)))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs.os, "fsync", full)
    for act in (lambda: store.put_file(file), lambda: store.write(BLOB, 3, b"the rest")):
        with pytest.raises(RunError, match="No space left on device"):
            act()
    assert not [path.name for path in (tmp_path / "fine").iterdir() if path.name.endswith(".tmp")]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 100)
    (tmp_path / "large").write_bytes(bytes(101))
    with pytest.raises(RunError, match="has 101 bytes; a blob has at most 100"):
        DiskBlobs(tmp_path).put_file(tmp_path / "large")


def test_an_id_follows_from_plain_sha256() -> None:
    chunk = hashlib.sha256(b"a").digest()
    assert blob_id(b"a") == hashlib.sha256(b"waggle/Manifest\0\1\x92\1\x91\xc4\x20" + chunk).digest()
