"""What admission remembers: which bodies came, which answers were given by whom, how much each author sent.

Everything is bounded and forgets its oldest first. The bound must hold more than what is admitted within the
charter's `max_age_s`, since older experience is refused as stale before it is looked up here.

A copy is told by its answers: the same completions to the same question under another digest. Few short
answers coincide by chance (two good models both say "7" eight times), so that only groups with enough
different text are compared; see `answers_digest`.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from waggle.core.codec import decode, encode
from waggle.core.types import Body, Digest, Noun, PeerId

CAPACITY = 16_384
MIN_DISTINCT = 3
MIN_CHARS = 64
_STATE_MAX_BYTES = 64 << 20


class Mark(Noun, frozen=True):
    """What is remembered of one admitted experience. `answers` is empty where a copy could not be told."""

    id: Digest
    author: PeerId
    round: int
    answers: bytes


class _Marks(Noun, frozen=True):
    marks: tuple[Mark, ...]


def answers_digest(question: bytes, body: Body) -> bytes:
    """Digest of a question and the multiset of its answers; empty where a coincidence is likely.

    Compared are groups with at least `MIN_DISTINCT` different texts of `MIN_CHARS` characters together.
    """
    texts = [completion.text for completion in body.completions]
    distinct = set(texts)
    if len(distinct) < MIN_DISTINCT or sum(map(len, distinct)) < MIN_CHARS:
        return b""
    state = hashlib.sha256(question)
    for text in sorted(text.encode() for text in texts):
        state.update(len(text).to_bytes(4, "big") + text)
    return state.digest()


class Seen:
    """A bounded memory of marks. Example: `seen = Seen(); seen.add(mark); seen.has(mark.id)`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._marks: OrderedDict[bytes, Mark] = OrderedDict()
        self._answers: dict[bytes, bytes] = {}
        self._num_sent: dict[tuple[bytes, int], int] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def has(self, body_id: bytes) -> bool:
        """Whether this very body was admitted before."""
        return body_id in self._marks

    def author_of(self, answers: bytes) -> bytes | None:
        """Who gave these answers first, if anybody did."""
        first = self._answers.get(answers)
        return self._marks[first].author if first is not None else None

    def num_sent(self, author: bytes, number: int) -> int:
        """Groups admitted of one author's round."""
        return self._num_sent.get((author, number), 0)

    def add(self, mark: Mark) -> None:
        """Remember one; the oldest is forgotten where there is no room."""
        if mark.id in self._marks:
            return
        if len(self._marks) >= self._capacity:
            self._forget(self._marks.popitem(last=False)[1])
        self._marks[mark.id] = mark
        if mark.answers:
            self._answers.setdefault(mark.answers, mark.id)
        sent = (mark.author, mark.round)
        self._num_sent[sent] = self._num_sent.get(sent, 0) + 1

    def _forget(self, mark: Mark) -> None:
        if self._answers.get(mark.answers) == mark.id:
            del self._answers[mark.answers]
        sent = (mark.author, mark.round)
        self._num_sent[sent] -= 1
        if not self._num_sent[sent]:
            del self._num_sent[sent]

    def state(self) -> bytes:
        """Everything remembered, for a checkpoint."""
        return encode(_Marks(tuple(self._marks.values())))

    @classmethod
    def restore(cls, state: bytes, newer: Iterable[Mark] = (), capacity: int = CAPACITY) -> "Seen":
        """What `state` held, and marks made since, oldest first.

        Raises:
            DecodeError: not a state.
        """
        seen = cls(capacity)
        for mark in (*decode(_Marks, state, _STATE_MAX_BYTES).marks, *newer):
            seen.add(mark)
        return seen
