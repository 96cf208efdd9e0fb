"""Canonical bytes: one value, one encoding, one digest; everything else is refused with a reason."""

import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from waggle.core.codec import MAX_BYTES, VERSION, decode, digest, digest_bytes, encode, pack, unpack
from waggle.core.errors import DecodeError
from waggle.core.types import Completion, Message, Sampling, TaskRef, Text, Verdict

REF = TaskRef("chain_sum", b"c" * 32, 5, 0, 17)

counts = st.integers(0, 2**53)
names = st.text(max_size=30)
digests = st.binary(min_size=32, max_size=32)
refs = st.builds(TaskRef, names, digests, counts, counts, counts)


@settings(max_examples=60)
@given(refs)
def test_what_is_encoded_is_decoded(ref: TaskRef) -> None:
    assert decode(TaskRef, encode(ref)) == ref


@settings(max_examples=150)
@given(refs, st.data())
def test_no_second_encoding_is_accepted(ref: TaskRef, data: st.DataObject) -> None:
    good = bytearray(encode(ref))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(TaskRef, bytes(good))
    except DecodeError:
        return
    assert other != ref
    assert encode(other) == bytes(good)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_reason(data: bytes) -> None:
    for kind in (TaskRef, Sampling, Verdict, Message):
        with contextlib.suppress(DecodeError):
            decode(kind, bytes((VERSION,)) + data)


def _array(*fields: object) -> bytes:
    return bytes((VERSION,)) + msgspec.msgpack.encode(fields)


BAD: list[tuple[str, type[msgspec.Struct], bytes, str]] = [
    ("empty", TaskRef, b"", "version"),
    ("other version", TaskRef, bytes((VERSION + 1,)) + encode(REF)[1:], "version"),
    ("too large", TaskRef, bytes(MAX_BYTES + 1), "too-large"),
    ("truncated", TaskRef, encode(REF)[:-1], "schema"),
    ("trailing", TaskRef, encode(REF) + b"\0", "schema"),
    ("one field more", TaskRef, _array("a", b"c" * 32, 1, 2, 3, 4), "schema"),
    ("one field less", TaskRef, _array("a", b"c" * 32, 1, 2), "schema"),
    ("short digest", TaskRef, _array("a", b"c" * 31, 1, 2, 3), "schema"),
    ("long name", TaskRef, _array("a" * 201, b"c" * 32, 1, 2, 3), "schema"),
    ("negative", TaskRef, _array("a", b"c" * 32, -1, 2, 3), "schema"),
    ("beyond 53 bits", TaskRef, _array("a", b"c" * 32, 2**53 + 1, 2, 3), "schema"),
    ("number as text", TaskRef, _array("a", b"c" * 32, "1", 2, 3), "schema"),
    ("not an array", TaskRef, bytes((VERSION,)) + msgspec.msgpack.encode({"env": "a"}), "schema"),
    ("bad utf-8", Message, bytes((VERSION, 0x92, 0xA4)) + b"user" + b"\xa1\xff", "schema"),
    ("nan", Sampling, _array(float("nan"), 1.0, 0, 8, 0), "schema"),
    ("infinite", Sampling, _array(float("inf"), 1.0, 0, 8, 0), "schema"),
    ("whole number as float", Sampling, _array(1, 1.0, 0, 8, 0), "not-canonical"),
    ("wide integer", TaskRef, encode(REF)[:-1] + b"\xcc\x11", "not-canonical"),
    ("nested far too deep", TaskRef, bytes((VERSION,)) + b"\x91" * 100_000, "schema"),
]


@pytest.mark.parametrize(("kind", "data", "reason"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_not_canonical_is_refused(kind: type[msgspec.Struct], data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(kind, data)
    assert caught.value.reason == reason
    assert kind.__name__ in str(caught.value)


@pytest.mark.parametrize("text", ["z\x1b[2J\nroot", "y" * 5000])
def test_an_error_does_not_carry_on_what_a_peer_wrote(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(Completion, _array([[text]], "stop", None))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_defaults_are_written_out() -> None:
    assert encode(Sampling()) == _array(1.0, 1.0, 0, 64, 0)


def test_a_union_is_told_by_its_tag() -> None:
    assert encode(Text("x")) == _array("text", "x")


def test_dicts_have_one_order() -> None:
    one, two = Verdict(1.0, {"a": 1.0, "b": 0.5}), Verdict(1.0, {"b": 0.5, "a": 1.0})
    assert digest(one) == digest(two)


def test_digests_are_fixed_for_all_time() -> None:
    assert digest(REF) == hashlib.sha256(b"waggle/TaskRef\0" + encode(REF)).digest()
    assert digest(REF).hex() == "e2d197d24872c9aab6d1886a505ed51934f744a7dbce29dce4345d34ea16b2e5"
    assert digest_bytes("A", b"x") != digest_bytes("B", b"x")


@settings(max_examples=50)
@given(st.binary(max_size=2000))
def test_packed_is_unpacked(data: bytes) -> None:
    assert unpack(pack(data), 2000) == data


@settings(max_examples=200)
@given(st.binary(max_size=300), st.booleans())
def test_any_frame_is_unpacked_or_refused(data: bytes, magic: bool) -> None:
    with contextlib.suppress(DecodeError):
        assert len(unpack(b"\x28\xb5\x2f\xfd" * magic + data, 1000)) <= 1000


def _bomb() -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))


BAD_FRAMES = [
    ("bomb", _bomb(), "too-large"),
    ("unknown size", zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 999), "too-large"),
    ("empty", b"", "compression"),
    ("truncated", pack(b"hello" * 100)[:-3], "compression"),
    ("trailing", pack(b"hello") + b"x", "compression"),
    ("two frames", pack(b"hello") * 2, "compression"),
    ("not zstd", b"hello, this is text", "compression"),
]


@pytest.mark.parametrize(("data", "reason"), [row[1:] for row in BAD_FRAMES], ids=[row[0] for row in BAD_FRAMES])
def test_bad_frames_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        unpack(data, 1 << 20)
    assert caught.value.reason == reason


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    frame = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(100_000)))
    declared = frame.index((100_000).to_bytes(4, "little"))
    frame[declared : declared + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(DecodeError, match="cannot be read"):
        unpack(bytes(frame), 1 << 20)


def test_two_threads_that_pack_do_not_spoil_each_others_bytes() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 8, 60_000, np.uint8).tobytes() for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        packed = list(pool.map(pack, texts * 12))
    assert [unpack(frame, 1 << 20) for frame in packed] == texts * 12
