"""Signing what is shared: one signature for a round, one path for each group, one for a charter.

The signed head is domain-separated and holds everything an announcement says except its entries, whose
digests it covers by their Merkle root.
"""

from collections.abc import Sequence

import msgspec

from waggle.core import merkle
from waggle.core.codec import digest, digest_bytes, encode
from waggle.core.keys import Key, verify
from waggle.core.types import Announcement, Answers, Body, Charter, Completion, Entry, Experience, Seal, Text


def _head(author: bytes, charter: bytes, number: int, created_ms: int, size: int, root: bytes) -> bytes:
    numbers = b"".join(n.to_bytes(8, "big") for n in (number, created_ms, size))
    return b"waggle/round/1\0" + author + charter + numbers + root


def seal(key: Key, charter: bytes, number: int, created_ms: int, bodies: Sequence[Body]) -> list[Experience]:
    """Sign one round's bodies, in order."""
    ids = [digest(body) for body in bodies]
    head = _head(key.id, charter, number, created_ms, len(ids), merkle.root(ids))
    signature = key.sign(head)
    return [
        Experience(body, Seal(created_ms, len(ids), i, merkle.path(ids, i), signature)) for i, body in enumerate(bodies)
    ]


def announce(charter: bytes, experiences: Sequence[Experience]) -> Announcement:
    """The announcement of a sealed round."""
    first = experiences[0]
    entries = tuple(Entry(digest(e.body), e.body.task, len(e.body.completions), len(encode(e))) for e in experiences)
    return Announcement(
        first.body.author, charter, first.body.round, first.seal.created_ms, entries, first.seal.signature
    )


def answers_of(number: int, body: Body) -> Answers:
    """What has to travel of an announced body; `number` is its place in the request."""
    completions = body.completions
    parts = tuple(_lone_text(c) or c.parts for c in completions)
    cut = tuple(i for i, c in enumerate(completions) if c.finish == "length")
    tokens = tuple(c.tokens for c in completions) if any(c.tokens for c in completions) else ()
    return Answers(number, body.policy, body.sampling, parts, cut, tokens)


def _lone_text(completion: Completion) -> str:
    parts = completion.parts
    return parts[0].text if len(parts) == 1 and isinstance(parts[0], Text) else ""


def rebuild(announcement: Announcement, index: int, answers: Answers) -> Experience | None:
    """The experience that entry `index` announced, or None where these answers are not those of its digest."""
    a, entry = announcement, announcement.entries[index]
    tokens, cut = answers.tokens or (None,) * len(answers.parts), frozenset(answers.cut)
    if len(tokens) != len(answers.parts):
        return None
    completions = tuple(
        Completion((Text(parts),) if isinstance(parts, str) else parts, "length" if i in cut else "stop", tokens[i])
        for i, parts in enumerate(answers.parts)
    )
    body = Body(entry.task, answers.policy, answers.sampling, completions, a.author, a.round)
    if digest(body) != entry.id:
        return None
    ids = [entry.id for entry in a.entries]
    return Experience(body, Seal(a.created_ms, len(ids), index, merkle.path(ids, index), a.signature))


def announcement_head(announcement: Announcement) -> bytes:
    """The signed head that an announcement's digests lead to."""
    a = announcement
    root = merkle.root([entry.id for entry in a.entries])
    return _head(a.author, a.charter, a.round, a.created_ms, len(a.entries), root)


def seal_head(charter: bytes, experience: Experience, body_id: bytes) -> bytes | None:
    """The signed head that an experience's path leads to, or None where the path fits no tree."""
    s, body = experience.seal, experience.body
    root = merkle.root_from(body_id, s.index, s.size, s.path)
    return None if root is None else _head(body.author, charter, body.round, s.created_ms, s.size, root)


def found(key: Key, charter: Charter) -> Charter:
    """The charter, signed by its founder."""
    unsigned = msgspec.structs.replace(charter, founder=key.id, signature=b"")
    return msgspec.structs.replace(unsigned, signature=key.sign(b"waggle/charter/1\0" + encode(unsigned)))


def charter_is_signed(charter: Charter) -> bool:
    """Whether the founder signed this charter."""
    unsigned = msgspec.structs.replace(charter, signature=b"")
    return verify(charter.founder, b"waggle/charter/1\0" + encode(unsigned), charter.signature)


def charter_digest(charter: Charter) -> bytes:
    """The swarm's identity: its charter's content, whoever signed it, 32 bytes."""
    return digest_bytes("Charter", encode(msgspec.structs.replace(charter, signature=b"")))
