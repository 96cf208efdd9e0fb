"""The nouns of Waggle, one definition each: frozen, typed, decoded strictly.

Every noun is a msgspec struct whose canonical bytes (`core/codec.py`) are what is hashed, signed, sent
and stored. A value that breaks a rule stated here cannot be built and cannot be decoded.

`Experience` is what is shared: completions by reference to a question, never a truth or a reward, since
nothing a peer says about those is believed. `Group` is what a node makes of it after regenerating the
question and grading every completion itself.
"""

import math
import struct
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
PeerId = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(max_length=64)]
Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**53)]

MAX_TEXT_CHARS = 100_000
MAX_GROUP = 256
"""The most completions a group may hold, whatever a charter says."""


class Noun(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all nouns: immutable, encoded as an array of its fields."""


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is not a finite number")


class Message(Noun, frozen=True):
    """One turn of a chat. Example: `Message("user", "3 + 4 =")`."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class TaskRef(Noun, frozen=True):
    """Enough for anyone to regenerate a question and its truth.

    `config` is the digest of the charter's `Family`; `seed` follows from the author's key (or the
    charter, for the common stream) and `epoch`, so that nobody picks his questions; `index` is the
    number of the draw within the epoch.
    Example: `TaskRef("chain_sum", b"..32..", 81985529216486895, 0, 17)`.
    """

    env: Name
    config: Digest
    seed: Count
    epoch: Count
    index: Count


class Task(Noun, frozen=True):
    """What a `TaskRef` regenerates to. The truth is never sent.

    `question` is the digest of the canonical question: it decides what is held out. `weak` marks a truth
    that came from a file and cannot be regenerated.
    Example: `Task(ref, (Message("user", "3 + 4 ="),), "reasoning-gym", "7", b"..32..", 8)`.
    """

    ref: TaskRef
    prompt: tuple[Message, ...]
    grader: Name
    truth: str
    question: Digest
    max_tokens: Annotated[int, Meta(ge=1, le=65536)]
    weak: bool = False
    stage: Count = 0
    parents: tuple[Digest, ...] = ()


class Sampling(Noun, frozen=True):
    """How completions were drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1.0 do not truncate.

    Example: `Sampling(1.0, 1.0, 0, 8, 42)`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Count = 0
    max_tokens: Annotated[int, Meta(ge=1, le=65536)] = 64
    seed: Count = 0

    def __post_init__(self) -> None:
        _finite(temperature=self.temperature, top_p=self.top_p)
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"temperature={self.temperature}, top_p={self.top_p}: need >= 0, and above 0 up to 1")


LoneText = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class Text(Noun, frozen=True, tag="text"):
    """A part of a completion that is text."""

    text: LoneText


class Blob(Noun, frozen=True, tag="blob"):
    """A part of a completion kept elsewhere: a picture, a sound. Example: `Blob(b"..32..", "image/png", 8192)`."""

    digest: Digest
    media_type: Name
    size_bytes: Count


class Tokens(Noun, frozen=True):
    """The sampled tokens, end-of-sequence included, and the sampler's log-probability of each.

    `logprobs` holds float32 values in nats, little-endian, one a token, or nothing where they are kept back.
    Example: `Tokens(b"..32..", (28, 2), np.array([-0.31, -0.02], "<f4").tobytes())`.
    """

    tokenizer: Digest
    ids: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=65536)]
    logprobs: Annotated[bytes, Meta(max_length=4 * 65536)] = b""

    def __post_init__(self) -> None:
        if not self.logprobs:
            return
        if len(self.logprobs) != 4 * len(self.ids):
            raise ValueError(f"{len(self.ids)} ids with {len(self.logprobs)} bytes of logprobs; 4 bytes an id")
        values = struct.unpack(f"<{len(self.ids)}f", self.logprobs)
        if not math.isfinite(sum(values)) or max(values) > 1e-3:
            raise ValueError("a logprob is not a finite number of at most 0")

    @property
    def logprobs_T(self) -> NDArray[np.float32]:
        """The log-probabilities as an array, shape [T] (empty where kept back)."""
        return np.frombuffer(self.logprobs, "<f4")


Parts = Annotated[tuple[Text | Blob, ...], Meta(max_length=16)]


class Completion(Noun, frozen=True):
    """One answer. `finish` is `stop` where the model ended it and `length` where it was cut off."""

    parts: Parts
    finish: Literal["stop", "length"]
    tokens: Tokens | None = None

    @property
    def text(self) -> str:
        """All text parts, joined."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Text):
            return self.parts[0].text
        return "".join([part.text for part in self.parts if isinstance(part, Text)])


class Verdict(Noun, frozen=True):
    """What a grader said: a reward in [0, 1], or None where it could not be graded, and why."""

    reward: float | None
    parts: dict[str, float] = {}
    error: str = ""

    def __post_init__(self) -> None:
        _finite(reward=self.reward or 0.0, **self.parts)


class PolicyRef(Noun, frozen=True):
    """Which weights answered. Example: `PolicyRef("smollm2-135m", b"..32..", 12)`.

    `weights` is the lineage digest: the base weights' content and every batch trained on since.
    """

    model: Name
    weights: Digest
    step: Count


class Rollout(Noun, frozen=True):
    """One completion and my own verdict on it."""

    completion: Completion
    verdict: Verdict


class Seal(Noun, frozen=True):
    """Proof that an experience is one of the groups its author signed for a round.

    `signature` covers the round's announcement head (author, charter, round, time, size, Merkle root);
    `path` leads from the group's digest to that root. Example: `Seal(1_700_000_000_000, 6, 2, (..,), b"..64..")`.
    """

    created_ms: Count
    size: Annotated[int, Meta(ge=1, le=4096)]
    index: Count
    path: Annotated[tuple[Digest, ...], Meta(max_length=12)]
    signature: Signature


class Body(Noun, frozen=True):
    """The unit that is shared, sampled and credited: one question, all answers to it by one author."""

    task: TaskRef
    policy: PolicyRef
    sampling: Sampling
    completions: Annotated[tuple[Completion, ...], Meta(min_length=1, max_length=MAX_GROUP)]
    author: PeerId
    round: Count


class Experience(Noun, frozen=True):
    """A body and the seal over it: what can be checked by anyone, and is kept."""

    body: Body
    seal: Seal


class Answers(Noun, frozen=True):
    """What travels of a body to somebody who has the announcement: what that does not say already.

    `number` is the position of the group's digest in the request. Completions travel as columns, which compress
    better: their parts (a lone text as it is), the places of those that were cut off, their tokens (nothing where
    none has any). The rest is rebuilt (`core/sealing.py`).
    Example: `Answers(0, policy, sampling, ("7", "8"), cut=(1,))`.
    """

    number: Annotated[int, Meta(ge=0, le=4095)]
    policy: PolicyRef
    sampling: Sampling
    parts: Annotated[tuple[LoneText | Parts, ...], Meta(min_length=1, max_length=MAX_GROUP)]
    cut: Annotated[tuple[Count, ...], Meta(max_length=MAX_GROUP)] = ()
    tokens: Annotated[tuple[Tokens | None, ...], Meta(max_length=MAX_GROUP)] = ()


class Group(Noun, frozen=True):
    """An experience whose question I regenerated and whose completions I graded, ready to train on."""

    task: Task
    policy: PolicyRef
    sampling: Sampling
    rollouts: tuple[Rollout, ...]
    author: PeerId
    round: Count
    id: Digest
    """Digest of the body."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the completions that could be graded."""
        return tuple(r.verdict.reward for r in self.rollouts if r.verdict.reward is not None)

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ, so that a group-relative advantage is not zero everywhere."""
        first: float | None = None
        for rollout in self.rollouts:
            reward = rollout.verdict.reward
            if first is None:
                first = reward
            elif reward is not None and abs(reward - first) > 1e-6:
                return True
        return False


class Entry(Noun, frozen=True):
    """One line of an announcement: what there is to pull."""

    id: Digest
    task: TaskRef
    completions: Annotated[int, Meta(ge=1, le=MAX_GROUP)]
    size_bytes: Count


class Announcement(Noun, frozen=True):
    """A round's groups, signed as one list. The signature is over `core/sealing.py`'s head, not over the entries.

    Example: `Announcement(author, charter, 12, 1_700_000_000_000, (Entry(...),), b"..64..")`.
    """

    author: PeerId
    charter: Digest
    round: Count
    created_ms: Count
    entries: Annotated[tuple[Entry, ...], Meta(min_length=1, max_length=4096)]
    signature: Signature = b""


class Family(Noun, frozen=True):
    """Questions of one kind: an environment, its configuration, and how to ask.

    `config` is canonical JSON; `source` is `reasoning-gym` or `file`; `version` is the generator's version
    or the blob id (hex) of the file; `working` names the style in which the shots show their working.
    Example: `Family("chain_sum", "reasoning-gym", '{"max_terms":2}', "0.1.25", "reasoning-gym", 3, "", 8)`.
    """

    env: Name
    source: Literal["reasoning-gym", "file"]
    config: Annotated[str, Meta(max_length=10_000)]
    version: Name
    grader: Name
    shots: Annotated[int, Meta(ge=0, le=16)]
    working: Name
    max_tokens: Annotated[int, Meta(ge=1, le=65536)]
    name: Name = ""
    """Unique in the charter; the environment's name where empty."""
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Its share of the draws, beside the weights of the other families."""

    @property
    def label(self) -> str:
        """The name people see."""
        return self.name or self.env


class Admission(Noun, frozen=True):
    """What a swarm accepts. Ages are in seconds of the author's stated time."""

    max_age_s: Count = 3600
    max_group: Annotated[int, Meta(ge=2, le=MAX_GROUP)] = 64
    max_completion_chars: Annotated[int, Meta(ge=1, le=MAX_TEXT_CHARS)] = 4000
    max_body_bytes: Annotated[int, Meta(ge=256, le=1 << 20)] = 1 << 18
    max_skew_s: Count = 600


class Charter(Noun, frozen=True):
    """What a swarm is. Its digest is the topic; the charter travels in the ticket.

    An empty `members` means that anyone may take part. `common_share` is the share of each epoch that
    comes from the stream common to the swarm.
    """

    name: Name
    families: Annotated[tuple[Family, ...], Meta(min_length=1, max_length=128)]
    protocol: Annotated[int, Meta(ge=1, le=1000)]
    admission: Admission
    common_share: Annotated[float, Meta(ge=0, le=1)]
    licence: Name
    members: Annotated[tuple[PeerId, ...], Meta(max_length=10_000)]
    founder: PeerId
    created_ms: Count
    signature: Signature = b""


class Ticket(Noun, frozen=True):
    """An invitation: the charter, addresses of peers that may be reached, and until when it is meant (0: for ever)."""

    charter: Charter
    addresses: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=32)] = ()
    expires_ms: Count = 0


class Peer(Noun, frozen=True):
    """Somebody I know. `capabilities` are free words such as `train`, `text-only`."""

    id: PeerId
    address: Name
    capabilities: tuple[Name, ...] = ()
    seen_ms: Count = 0
