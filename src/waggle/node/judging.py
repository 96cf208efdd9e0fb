"""The judge's pure part: held-out questions under a signed, fresh challenge, one answer each, results anyone can check.

    peer   Ask        signed: who, which weights, which round, a number of its own
    judge  Challenge  signed: the ask, the prompt's digest, a seal over the question's reference, until when
    peer   Reply      signed: the challenge's digest, the answer
    judge  Verdict    signed: challenge and reply, the reference that was sealed, the reward

The question follows from the judge's signature over the ask, so neither chooses it; its reference stays sealed until
the answer is in, so that the truth cannot be looked up by it. Whoever has the charter checks a log offline: `examine`
regenerates every question, opens the seal, grades again and verifies all four signatures. An answer is taken once, in
time, for the challenge that it names, from the peer that asked.

Left out: proof that the model answered, and not a person or a program. Whoever can read the prompt can solve it.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from waggle.core.codec import digest, digest_bytes, encode
from waggle.core.errors import TaskError
from waggle.core.keys import Key, peer_name, verify
from waggle.core.rng import seed_for
from waggle.core.types import MAX_TEXT_CHARS, Count, Digest, Message, Noun, PeerId, Signature, Task, TaskRef
from waggle.node.evaluate import wilson

ANSWER_MS = 120_000
"""How long an answer may take."""
MAX_OPEN, MAX_CLOSED = 4096, 65_536


class Ask(Noun, frozen=True):
    """A peer's wish for a question. `number` is its own, so that two of its wishes differ."""

    charter: Digest
    peer: PeerId
    model: Digest
    """Content of the weights that will answer."""
    round: Count
    number: Count
    signature: Signature = b""


class Challenge(Noun, frozen=True):
    """A question for one peer, one model and one round."""

    ask: Ask
    prompt: tuple[Message, ...]
    max_tokens: Annotated[int, Meta(ge=1, le=65536)]
    sealed: Digest
    """Digest of the question's reference and the judge's signature over the ask."""
    issued_ms: Count
    until_ms: Count
    judge: PeerId
    signature: Signature = b""


class Reply(Noun, frozen=True):
    """A peer's answer to a challenge."""

    challenge: Digest
    text: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
    signature: Signature = b""


class Judged(Noun, frozen=True):
    """A challenge with its answer and what it was worth; without an answer where none came in time."""

    challenge: Challenge
    reply: Reply | None
    ref: TaskRef
    salt: Signature
    """The judge's signature over the ask."""
    reward: float | None
    judged_ms: Count
    signature: Signature = b""


class Why(StrEnum):
    """Reasons for which a judge refuses, and a checker doubts."""

    SIGNATURE = "signature"
    OTHER_CHARTER = "other-charter"
    NOT_MEMBER = "not-member"
    TOO_MANY = "too-many"
    ASKED_BEFORE = "asked-before"
    UNKNOWN = "unknown-challenge"
    ANSWERED = "already-answered"
    LATE = "late"
    QUESTION = "question"
    GRADE = "grade"
    DOUBLE = "double"


class Refused(Exception):
    """Example: `Refused(Why.LATE, "12 s too late")`."""

    def __init__(self, reason: Why, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def signed_bytes(noun: Ask | Challenge | Reply | Judged) -> bytes:
    """What is signed of it: its kind and everything but the signature."""

    return f"waggle/judge/{type(noun).__name__}/1\0".encode() + encode(replace(noun, signature=b""))


def ask_of(key: Key, charter: bytes, model: bytes, number: int, round_: int) -> Ask:
    """A signed ask."""

    bare = Ask(charter, key.id, model, round_, number)
    return replace(bare, signature=key.sign(signed_bytes(bare)))


def reply_of(key: Key, challenge: Challenge, text: str) -> Reply:
    """A signed answer."""

    bare = Reply(digest(challenge), text)
    return replace(bare, signature=key.sign(signed_bytes(bare)))


@dataclass
class Rules:
    """What a judge, or a checker, knows of the swarm."""

    charter: bytes
    draw: Callable[[int], Task]
    """The held-out question of a seed; raises TaskError where there is none."""
    grade: Callable[[Task, str], float | None]
    is_member: Callable[[bytes], bool] = lambda peer: True


class Bench:
    """The judge at work. Example: `bench = Bench(key, rules); challenge = bench.ask(ask, now_ms)`."""

    def __init__(self, key: Key, rules: Rules) -> None:
        self.key, self.rules = key, rules
        self.refused: Counter[str] = Counter()
        self._open: OrderedDict[bytes, tuple[Challenge, Task, bytes]] = OrderedDict()
        self._closed: OrderedDict[bytes, None] = OrderedDict()
        self._asked: OrderedDict[bytes, None] = OrderedDict()

    def ask(self, ask: Ask, now_ms: int) -> Challenge:
        """A question for who asks.

        Raises:
            Refused: not signed by him, of another swarm, no member, a wish that was granted before, or one too many.
        """

        if not verify(ask.peer, signed_bytes(ask), ask.signature):
            raise self._no(Why.SIGNATURE, f"not signed by {peer_name(ask.peer)}")
        if ask.charter != self.rules.charter:
            raise self._no(Why.OTHER_CHARTER, "a wish of another swarm")
        if not self.rules.is_member(ask.peer):
            raise self._no(Why.NOT_MEMBER, f"{peer_name(ask.peer)} is no member")
        name = digest(ask)
        if name in self._asked:
            raise self._no(Why.ASKED_BEFORE, "this very wish was granted before; choose another number")
        if any(one.ask.peer == ask.peer for one, *_ in self._open.values()):
            raise self._no(Why.TOO_MANY, "a question of this peer's is still open; answer it first")
        if len(self._open) >= MAX_OPEN:
            raise self._no(Why.TOO_MANY, "too many questions are open; try again in a moment")
        salt = self.key.sign(signed_bytes(ask))
        task = self.rules.draw(seed_of(salt))
        bare = Challenge(
            ask, task.prompt, task.max_tokens, sealed(task.ref, salt), now_ms, now_ms + ANSWER_MS, self.key.id
        )
        challenge = replace(bare, signature=self.key.sign(signed_bytes(bare)))
        self._open[digest(challenge)] = challenge, task, salt
        _remember(self._asked, name)
        return challenge

    def remember(self, one: Judged) -> None:
        """A judgement of before a restart: its wish is granted and its question closed."""
        _remember(self._asked, digest(one.challenge.ask))
        _remember(self._closed, digest(one.challenge))

    def reply(self, reply: Reply, now_ms: int) -> Judged:
        """What an answer is worth.

        Raises:
            Refused: to no open question, a second one, too late, or not signed by who was asked.
        """
        if reply.challenge in self._closed:
            raise self._no(Why.ANSWERED, "this question has been answered, or its time is over")
        if reply.challenge not in self._open:
            raise self._no(Why.UNKNOWN, "an answer to no question of this judge's")
        challenge, task, _ = self._open[reply.challenge]
        if not verify(challenge.ask.peer, signed_bytes(reply), reply.signature):
            raise self._no(Why.SIGNATURE, f"not signed by {peer_name(challenge.ask.peer)}, who was asked")
        if now_ms > challenge.until_ms:
            raise self._no(Why.LATE, f"{(now_ms - challenge.until_ms) / 1000:.1f} s too late")
        return self._judged(reply.challenge, reply, self.rules.grade(task, reply.text), now_ms)

    def overdue(self, now_ms: int) -> list[Judged]:
        """The questions whose time is over without an answer; they count as wrong."""
        late = [name for name, (challenge, *_) in self._open.items() if now_ms > challenge.until_ms]
        return [self._judged(name, None, 0.0, now_ms) for name in late]

    def _judged(self, name: bytes, reply: Reply | None, reward: float | None, now_ms: int) -> Judged:

        challenge, task, salt = self._open.pop(name)
        _remember(self._closed, name)
        bare = Judged(challenge, reply, task.ref, salt, reward, now_ms)
        return replace(bare, signature=self.key.sign(signed_bytes(bare)))

    def _no(self, reason: Why, detail: str) -> Refused:
        self.refused[reason] += 1
        return Refused(reason, detail)


def _remember(names: OrderedDict[bytes, None], name: bytes) -> None:
    names[name] = None
    if len(names) > MAX_CLOSED:
        names.popitem(last=False)


def seed_of(salt: bytes) -> int:
    """From which the question is drawn: it follows from the judge's signature over the ask."""
    return seed_for("judge", salt)


def sealed(ref: TaskRef, salt: bytes) -> bytes:
    """The seal over a question's reference, 32 bytes."""
    return digest_bytes("Sealed", encode(ref) + salt)


def examine(one: Judged, rules: Rules) -> tuple[Why, str] | None:
    """What is wrong with a judgement, if anything: everything in it is checked again, the judge is not believed."""
    challenge, reply, ask = one.challenge, one.reply, one.challenge.ask
    judge = challenge.judge
    signed: list[tuple[bytes, Ask | Challenge | Reply | Judged]] = [(ask.peer, ask), (judge, challenge), (judge, one)]
    for signer, noun in (*signed, *([(ask.peer, reply)] if reply else [])):
        if not verify(signer, signed_bytes(noun), noun.signature):
            return Why.SIGNATURE, f"the {type(noun).__name__.lower()} is not signed by {peer_name(signer)}"
    if ask.charter != rules.charter:
        return Why.OTHER_CHARTER, "of another swarm"
    if not verify(judge, signed_bytes(ask), one.salt):
        return Why.SIGNATURE, "the question does not follow from the judge's signature"
    try:
        task = rules.draw(seed_of(one.salt))
    except TaskError as error:
        return Why.QUESTION, str(error)
    if task.ref != one.ref or sealed(one.ref, one.salt) != challenge.sealed or task.prompt != challenge.prompt:
        return Why.QUESTION, "another question than the one that follows from the ask"
    if reply is None:
        return None if one.judged_ms > challenge.until_ms else (Why.LATE, "said to be unanswered before its time")
    if reply.challenge != digest(challenge):
        return Why.UNKNOWN, "an answer to another question"
    if one.judged_ms > challenge.until_ms:
        return Why.LATE, "judged after its time"
    if one.reward != rules.grade(task, reply.text):
        return Why.GRADE, f"said to be worth {one.reward}"
    return None


class Place(NamedTuple):
    """A peer on the leaderboard, with one model."""

    peer: bytes
    model: bytes
    asked: int
    answered: int
    right: float
    """Sum of rewards; what was not answered in time is worth 0."""

    @property
    def rate(self) -> float:
        """Share right of all that was asked, so that nobody gains by answering only what he knows."""
        return self.right / self.asked if self.asked else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval."""
        return wilson(self.right, self.asked)


@dataclass
class Board:
    """Judgements added up. Example: `board = Board(); board.add(judged); board.places()`."""

    sums: dict[tuple[bytes, bytes], list[float]] = field(default_factory=dict)

    def add(self, one: Judged) -> None:
        """Count a judgement; one that could not be graded counts for nothing."""
        if one.reward is None:
            return
        cell = self.sums.setdefault((one.challenge.ask.peer, one.challenge.ask.model), [0, 0, 0.0])
        cell[0] += 1
        cell[1] += one.reply is not None
        cell[2] += one.reward

    def places(self) -> list[Place]:
        """The best lower bound first."""
        found = [Place(*who, int(a), int(b), right) for who, (a, b, right) in self.sums.items()]
        return sorted(found, key=lambda place: (-place.interval[0], place.peer, place.model))


def check(log: Iterable[Judged], rules: Rules) -> tuple[Board, list[tuple[int, Why, str]]]:
    """A board of what holds, and what does not, with its line. A question counts once."""
    board, faults, seen = Board(), [], set[bytes]()
    for line, one in enumerate(log, 1):
        name = digest(one.challenge)
        fault = (Why.DOUBLE, "a question that was judged before") if name in seen else examine(one, rules)
        seen.add(name)
        if fault:
            faults.append((line, *fault))
        else:
            board.add(one)
    return board, faults
