"""Canonical bytes: what is hashed, signed, sent and stored, defined once.

A noun's bytes are a version byte and its fields as one msgpack array (msgspec, `array_like`). Decoding is
strict: unknown or missing fields, wrong types, over-long fields, non-finite numbers and any encoding
other than the canonical one are refused, so that one value has one digest.
"""

import hashlib
import threading
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import zstandard

from waggle.core.errors import DecodeError, printable

VERSION = 1
MAX_BYTES = 1 << 20
"""The largest decoded noun that is accepted from anywhere, in bytes."""

T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_LEVEL = 9
_mine = threading.local()
"""A compressor a thread: one that two threads share writes garbage."""


@lru_cache(maxsize=64)
def _decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def encode(noun: msgspec.Struct) -> bytes:
    """The canonical bytes of a noun."""
    return bytes((VERSION,)) + _encoder.encode(noun)


def decode(kind: type[T], data: bytes, max_bytes: int = MAX_BYTES) -> T:
    """The noun whose canonical bytes these are.

    Raises:
        DecodeError: with `reason` one of `too-large`, `version`, `schema`, `not-canonical`.
    """
    noun = decode_stored(kind, data, max_bytes)
    if encode(noun) != data:
        raise DecodeError("not-canonical", f"{kind.__name__} is not in canonical form")
    return noun


def decode_stored(kind: type[T], data: bytes, max_bytes: int) -> T:
    """The noun that a node stored for itself, maybe by an earlier release: fields it did not know have their defaults.

    Raises:
        DecodeError: with `reason` one of `too-large`, `version`, `schema`.
    """
    if len(data) > max_bytes:
        raise DecodeError("too-large", f"{kind.__name__} has {len(data)} bytes; at most {max_bytes} are accepted")
    if not data or data[0] != VERSION:
        found = data[0] if data else "none"
        raise DecodeError("version", f"{kind.__name__} has format version {found}; this program reads {VERSION}")
    decoder = _decoder(kind)
    try:
        return decoder.decode(memoryview(data)[1:])  # type: ignore[no-any-return]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        cause = printable(str(error)[:200])  # it may quote what a peer wrote
        raise DecodeError("schema", f"{kind.__name__} is malformed: {cause}") from error


def digest(noun: msgspec.Struct) -> bytes:
    """Content digest of a noun, 32 bytes: SHA-256 over the kind's name and the canonical bytes."""
    return digest_bytes(type(noun).__name__, encode(noun))


def digest_bytes(kind: str, data: bytes) -> bytes:
    """SHA-256 with the kind in front, so that bytes of one kind never pass for another, 32 bytes."""
    return hashlib.sha256(b"waggle/" + kind.encode() + b"\0" + data).digest()


def pack(data: bytes) -> bytes:
    """Compressed with zstd; the size is declared in the frame."""
    if not hasattr(_mine, "compressor"):
        _mine.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False, write_content_size=True)
    return bytes(_mine.compressor.compress(data))


def unpack(data: bytes, max_bytes: int) -> bytes:
    """What `pack` was given. The declared size is checked before a byte is decompressed.

    Raises:
        DecodeError: with `reason` `too-large` or `compression`.
    """
    try:
        size_bytes = zstandard.frame_content_size(data)
        if size_bytes < 0 or size_bytes > max_bytes:
            raise DecodeError("too-large", f"a compressed frame declares {size_bytes} bytes; at most {max_bytes}")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError("compression", f"a compressed frame cannot be read: {error}") from error
