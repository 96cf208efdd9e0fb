"""What admission remembers: which bodies came, which answers were given by whom, how far each author got.

Everything is bounded and forgets its oldest first. The bound should hold more than what is admitted within the
charter's `max_age_s`, since older experience is refused as stale before it is looked up here.

A copy is told by its answers: the same completions to the same question under another digest. Few short
answers coincide by chance (two good models both say "7" eight times), so that only groups with enough
different text are compared; see `answers_digest`.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from waggle.core.codec import decode, encode
from waggle.core.types import Body, Count, Digest, Experience, Noun, PeerId

K = TypeVar("K")
CAPACITY = 16_384
MIN_DISTINCT = 3
MIN_CHARS = 64
_STATE_MAX_BYTES = 64 << 20


class Mark(Noun, frozen=True):
    """What is remembered of one admitted experience. `answers` is empty where a copy could not be told."""

    id: Digest
    author: PeerId
    round: Count
    draw: Digest
    epoch: Count
    created_ms: Count
    answers: bytes


class _Marks(Noun, frozen=True):
    marks: tuple[Mark, ...]


def mark(experience: Experience, body_id: bytes, question: bytes) -> Mark:
    """What to remember of an experience; of own ones too, so that a copy of mine is told."""
    body = experience.body
    answers = answers_digest(question, body)
    return Mark(body_id, body.author, body.round, draw_id(body), body.task.epoch, experience.seal.created_ms, answers)


def draw_id(body: Body) -> bytes:
    """Digest of an author and the draw he answered: nobody answers one draw twice."""
    return hashlib.sha256(body.author + encode(body.task)).digest()


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
        self._draws: Counter[bytes] = Counter()
        self._answers: dict[bytes, list[Mark]] = {}
        self._latest: dict[bytes, list[Mark]] = {}
        self._num_sent: Counter[tuple[bytes, int]] = Counter()

    def __len__(self) -> int:
        return len(self._marks)

    def has(self, body_id: bytes) -> bool:
        """Whether this very body was admitted before."""
        return body_id in self._marks

    def has_drawn(self, draw: bytes) -> bool:
        """Whether this author answered this very draw before."""
        return draw in self._draws

    def first(self, answers: bytes) -> Mark | None:
        """Who gave these answers first, if anybody did."""
        marks = self._answers.get(answers)
        return marks[0] if marks else None

    def latest(self, author: bytes) -> Mark | None:
        """The author's experience with the latest time."""
        marks = self._latest.get(author)
        return marks[0] if marks else None

    def num_sent(self, author: bytes, number: int) -> int:
        """Groups admitted of one author's round."""
        return self._num_sent[author, number]

    def add(self, mark: Mark) -> None:
        """Remember one; the oldest is forgotten where there is no room."""
        if mark.id in self._marks:
            return
        if len(self._marks) >= self._capacity:
            self._forget(self._marks.popitem(last=False)[1])
        self._marks[mark.id] = mark
        self._draws[mark.draw] += 1
        self._num_sent[mark.author, mark.round] += 1
        if mark.answers:
            self._answers.setdefault(mark.answers, []).append(mark)
        latest = self._latest.setdefault(mark.author, [])  # by falling time: the first is the latest kept
        while latest and latest[-1].created_ms <= mark.created_ms:
            latest.pop()
        latest.append(mark)

    def _forget(self, mark: Mark) -> None:
        _take_one(self._draws, mark.draw)
        _take_one(self._num_sent, (mark.author, mark.round))
        _take_first(self._answers, mark.answers, mark)
        _take_first(self._latest, mark.author, mark)

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


def _take_one(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _take_first(queues: dict[bytes, list[Mark]], key: bytes, mark: Mark) -> None:
    queue = queues.get(key)
    if queue and queue[0] is mark:
        del queue[0]
        if not queue:
            del queues[key]
