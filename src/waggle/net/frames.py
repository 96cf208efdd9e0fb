"""What neighbours say to each other, and what a request says: the wire format of the overlay.

A frame is one `Frame` in canonical bytes, strict like every noun: what does not decode ends the link. Numbers are
bounded here, so that nobody can make a node keep more than that.
"""

from typing import Annotated

from msgspec import Meta

from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError
from waggle.core.types import Count, Digest, Name, Noun
from waggle.net.book import Record
from waggle.net.transport import MAX_BODY_BYTES
from waggle.net.wire import MAX_FRAME_BYTES, Rude

PROTOCOL = 1
"""The version of the overlay that is described here."""
MAX_MESSAGE_BYTES = 1 << 20
MAX_TOLD = 64
"""Messages that a frame may name."""
TOLD = 8
"""Records of others that a frame may carry."""

Topic = Annotated[bytes, Meta(min_length=1, max_length=64)]
Names = Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_TOLD)]
Versions = Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
Records = Annotated[tuple[Record, ...], Meta(max_length=TOLD)]


class Hello(Noun, frozen=True, tag="hello"):
    """The first frame on a link, by who dialled: may I be your neighbour? `alone` where there is no other.

    `speaks` are versions of the overlay, the best first; `network` is the digest of the swarm's charter.
    """

    speaks: Versions
    network: Digest
    alone: bool
    record: Record


class Welcome(Noun, frozen=True, tag="welcome"):
    """The answer: the version that will be spoken, or 0 and why the link ends; the records help to find others."""

    version: Count
    why: Annotated[str, Meta(max_length=200)]
    record: Record
    known: Records


class Push(Noun, frozen=True, tag="push"):
    """A message itself."""

    topic: Topic
    data: Annotated[bytes, Meta(max_length=MAX_MESSAGE_BYTES)]


class Have(Noun, frozen=True, tag="have"):
    """Messages of some size are here for who wants them, named by the digest of topic and data."""

    ids: Names


class Want(Noun, frozen=True, tag="want"):
    """Send me these messages."""

    ids: Names


class Known(Noun, frozen=True, tag="known"):
    """Records of others, unasked."""

    records: Records


class Ping(Noun, frozen=True, tag="ping"):
    """I am here."""


class Bye(Noun, frozen=True, tag="bye"):
    """We are neighbours no more; others to turn to."""

    known: Records


Said = Hello | Welcome | Push | Have | Want | Known | Ping | Bye


class Frame(Noun, frozen=True):
    """One frame."""

    said: Said


class Request(Noun, frozen=True):
    """A question to a peer under a protocol's name."""

    proto: Name
    body: Annotated[bytes, Meta(max_length=MAX_BODY_BYTES)]


def write(said: Said) -> bytes:
    """A frame's bytes."""
    return encode(Frame(said))


def read(data: bytes) -> Said:
    """What a frame says.

    Raises:
        NetworkError: it is none.
    """
    try:
        return decode(Frame, data, MAX_FRAME_BYTES).said
    except DecodeError as error:
        raise Rude("no-frame", f"a frame that cannot be read ({error})") from error
