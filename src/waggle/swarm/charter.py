"""What a swarm is, and the text by which one invites others.

A ticket holds the whole signed charter, so that a node can check it and start alone before any peer answers.
Its text is `waggle1:` and, in base64url without padding, the zstd frame of the ticket's canonical bytes
followed by the first four bytes of the frame's SHA-256, which tell a typing error from a forgery.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from waggle.core.codec import MAX_BYTES, decode, encode, pack, unpack
from waggle.core.errors import ConfigError, DecodeError
from waggle.core.keys import Key
from waggle.core.sealing import charter_is_signed, found
from waggle.core.types import Admission, Charter, Family, Ticket

PROTOCOL = 1
"""The version of what peers say to each other. Nodes of different versions do not talk."""

LICENCE = "CC-BY-4.0"
PREFIX = "waggle1:"
MAX_TICKET_CHARS = 2 * MAX_BYTES
_CHECK_BYTES = 4


def new_charter(
    key: Key,
    name: str,
    families: Sequence[Family],
    *,
    created_ms: int,
    members: Sequence[bytes] = (),
    common_share: float = 0.25,
    licence: str = LICENCE,
    admission: Admission = Admission(),
) -> Charter:
    """Found a swarm: a charter signed by `key`. Where members are named, the founder is one of them.

    Raises:
        ConfigError: no name, no families, two families of one name, or a value out of its range.
    """
    labels = [family.label for family in families]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"two families of the swarm are called {twice[0]}; give one of them another name")
    if not name.strip() or not name.isprintable():
        raise ConfigError("a swarm needs a name of printable characters, e.g. `waggle new bees`")
    everyone = tuple(sorted({*members, key.id})) if members else ()
    charter = Charter(
        name, tuple(families), PROTOCOL, admission, common_share, licence, everyone, key.id, created_ms, b""
    )
    signed = found(key, charter)
    try:
        return decode(Charter, encode(signed))
    except DecodeError as error:
        raise ConfigError(f"the swarm {name!r} cannot be founded: {error}") from error


def is_member(charter: Charter, peer: bytes) -> bool:
    """Whether a peer may take part."""
    return not charter.members or peer in charter.members


def ticket_text(ticket: Ticket) -> str:
    """An invitation to pass on, one word."""
    frame = pack(encode(ticket))
    return PREFIX + base64.urlsafe_b64encode(frame + _checksum(frame)).decode().rstrip("=")


def read_ticket(text: str, now_ms: int = 0) -> Ticket:
    """What `ticket_text` wrote, checked whole; its end too where the time is given. White space is ignored.

    Raises:
        ConfigError: not a ticket, damaged, of another version, expired, or not signed by its founder.
    """
    frame = _frame("".join(text.split()))
    try:
        ticket = decode(Ticket, unpack(frame, MAX_BYTES))
    except DecodeError as error:
        raise ConfigError(f"this ticket cannot be read: {error}; it may come from another version of waggle") from error
    charter = ticket.charter
    if charter.protocol != PROTOCOL:
        newer = "update waggle" if charter.protocol > PROTOCOL else "ask for a ticket of a current swarm"
        raise ConfigError(f"the swarm {charter.name!r} speaks protocol {charter.protocol}, not {PROTOCOL}; {newer}")
    if not all(text.isprintable() for text in (charter.name, charter.licence, *(f.label for f in charter.families))):
        raise ConfigError("this ticket names its swarm with control characters and is refused; do not trust its source")
    if not charter_is_signed(charter):
        raise ConfigError(f"the ticket of {charter.name!r} is not signed by its founder; get it again from its source")
    if 0 < ticket.expires_ms <= now_ms:
        day = datetime.fromtimestamp(ticket.expires_ms / 1000, UTC).date()
        raise ConfigError(f"this ticket of {charter.name!r} was good until {day}; ask for a new one")
    return ticket


def _checksum(frame: bytes) -> bytes:
    return hashlib.sha256(frame).digest()[:_CHECK_BYTES]


def _frame(word: str) -> bytes:
    if not word.startswith(PREFIX):
        shown = f"{word[:20]}..." if len(word) > 20 else word
        raise ConfigError(f"{shown!r} is not a ticket; one begins with {PREFIX}")
    body = word[len(PREFIX) :]
    damaged = ConfigError("this ticket is damaged, by a missing piece or a wrong letter; copy it again, whole")
    if len(body) > MAX_TICKET_CHARS:
        raise ConfigError(f"this ticket has {len(body)} characters; at most {MAX_TICKET_CHARS} are read")
    try:
        data = base64.b64decode(body.encode() + b"=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise damaged from None
    frame = data[:-_CHECK_BYTES]
    if not frame or data[-_CHECK_BYTES:] != _checksum(frame):
        raise damaged
    return frame
