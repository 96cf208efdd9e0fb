"""Whether a peer's experience is taken in: pure decisions on bytes that nobody vouches for.

`screen` does everything but grading, the cheap before the dear: size, form, membership, signature, freshness,
the question (drawn by rule, regenerated here, not held out), the answers (bounded, spelled by their tokens,
plausible, not a copy). `finish` makes a group of it from my own grader's verdicts. Every check is total:
whatever the bytes, the outcome is a value, and a refusal names its reason.

A refusal carries its author only once the signature was checked; before that the sender alone is to blame,
since anyone can write a stranger's name into a message.

Left out: trust in authors over time, which `trust.py` counts from refusals; `View.quarantined` says what came of it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from waggle.core.codec import decode, digest
from waggle.core.errors import DecodeError, TaskError
from waggle.core.keys import peer_name, verify
from waggle.core.sealing import announcement_head, charter_digest, seal_head
from waggle.core.types import (
    Admission,
    Announcement,
    Blob,
    Body,
    Charter,
    Completion,
    Experience,
    Family,
    Group,
    Rollout,
    Task,
    TaskRef,
    Tokens,
    Verdict,
)
from waggle.swarm.seen import Mark, Seen, draw_id, mark

SEAL_MAX_BYTES = 1024
"""Bytes that a seal may add to a body."""
ANNOUNCEMENT_MAX_BYTES = 1 << 18
MIN_GROUP = 2
TEMPERATURES = (0.05, 4.0)
"""Outside of these a log-probability says nothing about a policy."""
MIN_LOGPROB = -30.0
"""Nats. A token this unlikely is not met in sampling: its chance is below vocabulary size times e^-30."""
MIN_EPOCH_S = 10
"""Seconds that an author's epoch (4,096 draws) takes at least, so that nobody leafs through for what he likes."""
_HEADS = 256


class Reason(StrEnum):
    """Why something was refused. The first seven are those of `DecodeError`, for batches too."""

    TOO_LARGE = "too-large"
    VERSION = "version"
    SCHEMA = "schema"
    NOT_CANONICAL = "not-canonical"
    COMPRESSION = "compression"
    FRAMING = "framing"
    TOO_MANY = "too-many"
    OTHER_CHARTER = "other-charter"
    NOT_MEMBER = "not-member"
    OWN = "own"
    SIGNATURE = "signature"
    STALE = "stale"
    FUTURE = "future"
    DUPLICATE = "duplicate"
    QUOTA = "quota"
    EPOCH = "epoch"
    REPEAT = "repeat"
    FAMILY = "family"
    NOT_DRAWN = "not-drawn"
    GROUP_SIZE = "group-size"
    SAMPLING = "sampling"
    BLOB = "blob"
    TOO_LONG = "too-long"
    LOGPROBS = "logprobs"
    TASK = "task"
    HELD_OUT = "held-out"
    TOKENS = "tokens"
    COPY = "copy"
    UNGRADED = "ungraded"
    QUARANTINED = "quarantined"


class Refusal(NamedTuple):
    """Example: `Refusal(Reason.STALE, "made 4000 s ago; at most 3600 s are accepted", author)`."""

    reason: Reason
    detail: str
    author: bytes | None = None
    """Who is proven to have sent it, or None where no signature was checked."""


class Screened(NamedTuple):
    """An experience that only lacks grading."""

    body: Body
    task: Task
    mark: Mark
    size_bytes: int

    @property
    def texts(self) -> list[str]:
        """What is to be graded, in order."""
        return [completion.text for completion in self.body.completions]


@dataclass(slots=True)
class View:
    """What this node knows that admission needs. Only `seen` and the signature cache change.

    The callables are the node's own. `regenerate` may raise `TaskError`; the others must be total.
    """

    charter: Charter
    me: bytes
    regenerate: Callable[[TaskRef], Task]
    is_drawn: Callable[[TaskRef, bytes], bool]
    """Whether a question is one that this author's stream, or the common one, holds."""
    is_train: Callable[[bytes], bool]
    """Whether a question's digest lies outside the held-out buckets."""
    tokenizer: bytes = b""
    """Digest of my tokenizer; empty where I have none."""
    spells: Callable[[Completion], bool] = lambda completion: True
    """Whether a completion's ids, of my tokenizer, spell its text, end as `finish` says, and hide no special token."""
    quarantined: Callable[[bytes], str] = lambda author: ""
    """Why nothing of an author is wanted for now, or nothing."""
    verify: Callable[[bytes, bytes, bytes], bool] = verify
    """Whether a peer signed these bytes: peer, bytes, signature."""
    max_groups_per_round: int = 256
    seen: Seen = field(default_factory=Seen)
    charter_id: bytes = field(init=False)
    families: dict[bytes, Family] = field(init=False)
    members: frozenset[bytes] = field(init=False)
    _heads: OrderedDict[bytes, bool] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.charter_id = charter_digest(self.charter)
        self.families = {digest(family): family for family in self.charter.families}
        self.members = frozenset(self.charter.members)

    def is_signed(self, author: bytes, head: bytes, signature: bytes) -> bool:
        """Whether the author signed a round's head; each distinct pair of both is verified once."""
        pair = head + signature
        known = self._heads.get(pair)
        if known is None:
            known = self._heads[pair] = self.verify(author, head, signature)
            if len(self._heads) > _HEADS:
                self._heads.popitem(last=False)
        return known


def screen(data: bytes, view: View, now_ms: int) -> Screened | Refusal:
    """Every check but grading. What passes is remembered as seen."""
    rules = view.charter.admission
    try:
        experience = decode(Experience, data, rules.max_body_bytes + SEAL_MAX_BYTES)
    except DecodeError as error:
        return Refusal(Reason(error.reason), str(error))
    body, author = experience.body, experience.body.author
    body_id = digest(body)
    refusal = _stranger(author, view) or check_quarantine(author, view) or _unsigned(experience, body_id, view)
    if refusal:
        return refusal
    refusal = (
        _untimely(experience.seal.created_ms, view, now_ms)
        or _repeated(experience, body_id, view)
        or _unasked(body, view)
        or oversized(body, rules)
    )
    if refusal:
        return refusal._replace(author=author)
    try:
        task = view.regenerate(body.task)
    except TaskError as error:
        return Refusal(Reason.TASK, str(error), author)
    made = mark(experience, body_id, task.question)
    refusal = _unfit(task, body, view) or _copied(made, view)
    if refusal:
        return refusal._replace(author=author)
    view.seen.add(made)
    return Screened(body, task, made, len(data))


def finish(screened: Screened, verdicts: Sequence[Verdict], view: View) -> Group | Refusal:
    """A group to train on, from my own verdicts, one a completion. Tokens of other tokenizers are put aside."""
    body, task, mark, _ = screened
    if all(verdict.reward is None for verdict in verdicts):
        why = verdicts[0].error if verdicts else "no verdicts"
        return Refusal(Reason.UNGRADED, f"no answer could be graded: {why}", body.author)
    rollouts = tuple(
        Rollout(_readable(completion, view), verdict)
        for completion, verdict in zip(body.completions, verdicts, strict=True)
    )
    return Group(task, body.policy, body.sampling, rollouts, body.author, body.round, mark.id)


def screen_announcement(data: bytes, sender: bytes, view: View, now_ms: int) -> Announcement | Refusal:
    """Whether an announcement is worth a look. Only its author, time and digests are signed; the rest is a hint.

    Its signature is left to `check_signature`, when something of it is wanted: the sender is authenticated already, and
    nobody passes on what others wrote.
    """
    try:
        news = decode(Announcement, data, ANNOUNCEMENT_MAX_BYTES)
    except DecodeError as error:
        return Refusal(Reason(error.reason), str(error))
    if news.charter != view.charter_id:
        return Refusal(Reason.OTHER_CHARTER, "an announcement of another swarm")
    if refusal := _stranger(news.author, view):
        return refusal
    if news.author != sender:  # a thief would be asked in the author's place
        detail = f"announced by somebody other than its author, {peer_name(news.author)}"
        return Refusal(Reason.SIGNATURE, detail)
    if len(news.entries) > view.max_groups_per_round:
        detail = f"{len(news.entries)} groups announced; at most {view.max_groups_per_round} a round are accepted"
        return Refusal(Reason.QUOTA, detail)
    if len({entry.id for entry in news.entries}) != len(news.entries):
        return Refusal(Reason.DUPLICATE, "an announcement that lists one group twice")
    return _untimely(news.created_ms, view, now_ms) or news


def check_signature(news: Announcement, view: View) -> Refusal | None:
    """Whether the author signed this list: to be asked before anything on it is pulled."""
    if view.is_signed(news.author, announcement_head(news), news.signature):
        return None
    return Refusal(Reason.SIGNATURE, f"an announcement that {peer_name(news.author)} did not sign")


def check_quarantine(author: bytes, view: View) -> Refusal | None:
    """Whether nothing of this author is wanted for now; to be asked of an announcement once it is known as heard."""
    if why := view.quarantined(author):
        return Refusal(Reason.QUARANTINED, f"{peer_name(author)} is in quarantine for {why}")
    return None


def oversized(body: Body, rules: Admission) -> Refusal | None:
    """What of a body is beyond the charter's rules; also for its author, who need not send what all refuse."""
    size = len(body.completions)
    if not MIN_GROUP <= size <= rules.max_group:
        return Refusal(Reason.GROUP_SIZE, f"{size} completions; {MIN_GROUP} to {rules.max_group} are accepted")
    if not TEMPERATURES[0] <= body.sampling.temperature <= TEMPERATURES[1]:
        low, high = TEMPERATURES
        return Refusal(Reason.SAMPLING, f"temperature {body.sampling.temperature:g}; {low} to {high} are accepted")
    for completion in body.completions:
        if any(isinstance(part, Blob) for part in completion.parts):
            return Refusal(Reason.BLOB, "a completion that is not text alone")
        if (length := len(completion.text)) > rules.max_completion_chars:
            return Refusal(Reason.TOO_LONG, f"{length} characters; at most {rules.max_completion_chars} are accepted")
        if completion.tokens is not None and (refusal := _implausible(completion.tokens, body)):
            return refusal
    return None


def _stranger(author: bytes, view: View) -> Refusal | None:
    if author == view.me:
        return Refusal(Reason.OWN, "my own work came back to me")
    if view.members and author not in view.members:
        return Refusal(Reason.NOT_MEMBER, f"{peer_name(author)} is not a member of {view.charter.name!r}")
    return None


def _unsigned(experience: Experience, body_id: bytes, view: View) -> Refusal | None:
    head = seal_head(view.charter_id, experience, body_id)
    if head is None:
        return Refusal(Reason.SIGNATURE, "a Merkle path that fits no round")
    if not view.is_signed(experience.body.author, head, experience.seal.signature):
        return Refusal(Reason.SIGNATURE, f"{peer_name(experience.body.author)} did not sign this for this swarm")
    return None


def _untimely(created_ms: int, view: View, now_ms: int) -> Refusal | None:
    age_s = (now_ms - created_ms) / 1000
    rules = view.charter.admission
    if age_s > rules.max_age_s:
        return Refusal(Reason.STALE, f"made {age_s:.0f} s ago; at most {rules.max_age_s} s are accepted")
    if -age_s > rules.max_skew_s:
        return Refusal(Reason.FUTURE, f"dated {-age_s:.0f} s ahead; at most {rules.max_skew_s} s are accepted")
    return None


def _repeated(experience: Experience, body_id: bytes, view: View) -> Refusal | None:
    body = experience.body
    if view.seen.has(body_id):
        return Refusal(Reason.DUPLICATE, "this very group came before")
    sent = max(experience.seal.size, view.seen.num_sent(body.author, body.round) + 1)
    if sent > view.max_groups_per_round:
        return Refusal(Reason.QUOTA, f"{sent} groups in one round; at most {view.max_groups_per_round} are accepted")
    if view.seen.has_drawn(draw_id(body)):
        return Refusal(Reason.REPEAT, "a question that its author answered before")
    latest = view.seen.latest(body.author)
    elapsed_s = abs(experience.seal.created_ms - latest.created_ms) / 1000 if latest else 0.0
    if latest and abs(body.task.epoch - latest.epoch) > 1 + elapsed_s / MIN_EPOCH_S:
        detail = f"from epoch {latest.epoch} to {body.task.epoch} in {elapsed_s:.0f} s; nobody draws that fast"
        return Refusal(Reason.EPOCH, detail)
    return None


def _unasked(body: Body, view: View) -> Refusal | None:
    family = view.families.get(body.task.config)
    if family is None or family.env != body.task.env:
        return Refusal(Reason.FAMILY, f"{body.task.env!r} with this configuration is no family of the swarm")
    if not view.is_drawn(body.task, body.author):
        return Refusal(Reason.NOT_DRAWN, f"{family.label} {body.task.index} is not a question the author was dealt")
    return None


def _implausible(tokens: Tokens, body: Body) -> Refusal | None:
    if not 1 <= len(tokens.ids) <= body.sampling.max_tokens:
        return Refusal(Reason.TOKENS, f"{len(tokens.ids)} tokens where 1 to {body.sampling.max_tokens} were sampled")
    if tokens.logprobs and (lowest := float(tokens.logprobs_T.min())) < MIN_LOGPROB:
        return Refusal(Reason.LOGPROBS, f"a sampled token with a log-probability of {lowest:.1f}")
    return None


def _unfit(task: Task, body: Body, view: View) -> Refusal | None:
    if not view.is_train(task.question):
        return Refusal(Reason.HELD_OUT, "a question that is held out from training")
    for completion in body.completions:
        tokens = completion.tokens
        if tokens is None or tokens.tokenizer != view.tokenizer:
            continue
        if len(tokens.ids) > task.max_tokens:
            return Refusal(Reason.TOKENS, f"{len(tokens.ids)} tokens; this family allows {task.max_tokens}")
        if not view.spells(completion):
            return Refusal(Reason.TOKENS, "token ids that do not spell the text")
    return None


def _copied(new: Mark, view: View) -> Refusal | None:
    first = view.seen.first(new.answers)
    return Refusal(Reason.COPY, f"the answers that {peer_name(first.author)} gave before") if first else None


def _readable(completion: Completion, view: View) -> Completion:
    if completion.tokens is None or completion.tokens.tokenizer == view.tokenizer:
        return completion
    return msgspec.structs.replace(completion, tokens=None)
