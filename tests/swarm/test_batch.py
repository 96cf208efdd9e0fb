"""Batches of experiences: what was packed comes out, and a hostile frame costs one refusal."""

import contextlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import body, sent, view
from waggle.core.codec import pack
from waggle.core.errors import DecodeError
from waggle.swarm.admission import Refusal, Screened, screen
from waggle.swarm.batch import pack_batch, unpack_batch


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_what_is_packed_is_unpacked(items: list[bytes]) -> None:
    assert unpack_batch(pack_batch(items, 10_000), 10_000, 8) == items


def test_what_does_not_fit_is_left_out() -> None:
    items = [bytes(10), bytes(100), bytes(20)]
    assert unpack_batch(pack_batch(items, 38), 38, 3) == [bytes(10), bytes(20)]
    assert unpack_batch(pack_batch(items, 0), 0, 3) == []


def item(data: bytes, size: int | None = None) -> bytes:
    return (len(data) if size is None else size).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "compression"),
        (b"junk that is no frame", "compression"),
        (pack(item(b"abc"))[:-2], "compression"),
        (pack(item(b"abc", 4)), "framing"),
        (pack(item(b"abc", 2**32 - 1)), "framing"),
        (pack(item(b"abc") + b"\0\0\0"), "framing"),
        (pack(item(b"") * 4), "too-many"),
        (pack(item(bytes(2000))), "too-large"),
        (zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20)), "too-large"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(item(b"abc")), "too-large"),
    ],
)
def test_hostile_batches_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        unpack_batch(data, 1000, 3)
    assert caught.value.reason == reason


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_batch_or_refused(data: bytes, packed: bool) -> None:
    with contextlib.suppress(DecodeError):
        items = unpack_batch(pack(data) if packed else data, 1000, 5)
        assert len(items) <= 5
        assert sum(map(len, items)) <= 1000


def test_one_bad_item_refuses_only_itself() -> None:
    good = sent(body(), body(number=1))
    me = view()
    items = unpack_batch(pack_batch([good[0], b"junk", bytes(300_000), good[1]], 1 << 20), 1 << 20, 4)
    results = [screen(data, me, 1_700_000_000_000) for data in items]
    assert [type(result) for result in results] == [Screened, Refusal, Refusal, Screened]


def test_groups_together_are_smaller_than_alone() -> None:
    experiences = sent(*(body(number=number) for number in range(6)))
    alone = sum(len(pack(data)) for data in experiences)
    assert len(pack_batch(experiences, 1 << 20)) < 0.8 * alone
