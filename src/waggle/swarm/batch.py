"""Several experiences in one reply: length-prefixed canonical bytes in one zstd frame.

Groups that travel together compress far better than alone. The frame's size is checked before anything is
decompressed. A broken frame refuses the batch; a bad experience in a good frame refuses only itself, since
each is decoded alone, by `admission.screen`.
"""

from collections.abc import Iterable

from waggle.core.codec import pack, unpack
from waggle.core.errors import DecodeError

_PREFIX_BYTES = 4


def pack_batch(experiences: Iterable[bytes], max_bytes: int) -> bytes:
    """Canonical bytes of experiences, in order; what does not fit into `max_bytes` before compression is left out."""
    pieces: list[bytes] = []
    size_bytes = 0
    for data in experiences:
        grown_bytes = size_bytes + _PREFIX_BYTES + len(data)
        if grown_bytes <= max_bytes:
            size_bytes = grown_bytes
            pieces += (len(data).to_bytes(_PREFIX_BYTES, "big"), data)
    return pack(b"".join(pieces))


def unpack_batch(data: bytes, max_bytes: int, max_items: int) -> list[bytes]:
    """The canonical bytes of each experience in a batch, none of them decoded yet.

    Raises:
        DecodeError: with `reason` `too-large`, `compression`, `framing` or `too-many`.
    """
    content = unpack(data, max_bytes)
    items: list[bytes] = []
    start = 0
    while start < len(content):
        first = start + _PREFIX_BYTES
        last = first + int.from_bytes(content[start:first], "big")
        if first > len(content) or last > len(content):
            raise DecodeError("framing", f"item {len(items)} of a batch ends after the batch does")
        if len(items) == max_items:
            raise DecodeError("too-many", f"a batch holds more than the {max_items} experiences asked for")
        items.append(content[first:last])
        start = last
    return items
