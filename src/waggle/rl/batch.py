"""From graded groups to what one optimiser step needs: ids, sampler log-probabilities, advantages.

Tokens in, tokens out: where a completion carries ids of my tokenizer they are used as they are. Text from
another tokenizer, or from a peer without a model, is encoded here and has no sampler log-probabilities: the
trainer then takes my own at first use, so that its ratio is 1. The end of an answer is an action: a completion
that stopped ends in a stop id. A batch has canonical bytes, which the journal stores and replays.

Left out: per-peer weights and the age of a group, which decide what is drawn from the pool and not how it
is trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from waggle.core import codec
from waggle.core.types import Blob, Completion, Group, Message, Noun, PeerId, Tokens
from waggle.policy.tree import Ints, Prompted
from waggle.rl.advantage import advantages, most_different

MAX_BATCH_BYTES = 1 << 28
"""The largest batch that is read back, in bytes."""
MAX_ADVANTAGE = 1e6


class Speller(Protocol):
    """What of a policy turns messages and text into ids, and says which ids it has."""

    tokenizer_digest: bytes
    stop_ids: tuple[int, ...]

    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...
    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]: ...
    def encode_text(self, text: str, finish: Literal["stop", "length"]) -> tuple[int, ...]: ...


class Example(Noun, frozen=True):
    """One group, ready to train on. Arrays are little-endian bytes: int32 ids, float32 log-probabilities.

    `lengths` cuts `ids` and `old` into G completions; `known` says which of them carry the sampler's
    log-probabilities (the others hold zeros).
    Example: prompt `5 7`, completions `9 2` and `3`: `Example(i32(5, 7), i32(9, 2, 3), (2, 1), f32(-0.3, -0.1, 0),
    (True, False), (0.5, -0.5), False)`.
    """

    prompt: bytes
    ids: bytes
    lengths: tuple[int, ...]
    old: bytes
    known: tuple[bool, ...]
    advantages: tuple[float, ...]
    foreign: bool

    def __post_init__(self) -> None:
        counts = {len(self.lengths), len(self.known), len(self.advantages)}
        size = 4 * sum(self.lengths)
        if len(counts) > 1 or min(self.lengths, default=1) < 1 or len(self.ids) != size or len(self.old) != size:
            raise ValueError("an example's completions, ids, log-probabilities and advantages differ in number")
        if not self.prompt or len(self.prompt) % 4:
            raise ValueError(f"a prompt of {len(self.prompt)} bytes; 4 bytes an id, and at least one")
        if not all(abs(gain) <= MAX_ADVANTAGE for gain in self.advantages):
            raise ValueError(f"an advantage is not a number between -{MAX_ADVANTAGE:g} and {MAX_ADVANTAGE:g}")

    @property
    def prompted(self) -> Prompted:
        """The prompt and its completions as arrays."""
        cuts = np.cumsum(self.lengths)[:-1]
        return Prompted(np.frombuffer(self.prompt, "<i4"), np.split(np.frombuffer(self.ids, "<i4"), cuts))

    @property
    def old_N(self) -> NDArray[np.float32]:
        """Sampler log-probabilities, zero where not known, shape [N]."""
        return np.frombuffer(self.old, "<f4")

    def per_token(self, values_G: Sequence[float]) -> NDArray[np.float32]:
        """One value a completion, repeated for each of its tokens, shape [N]."""
        return np.repeat(np.asarray(values_G, np.float32), self.lengths)


class Batch(Noun, frozen=True):
    """The groups of one optimiser step.

    `dropped` counts graded completions that could not be used: without a token, or longer than the model reads.
    """

    examples: tuple[Example, ...] = ()
    dropped: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(sum(example.lengths) for example in self.examples)

    @property
    def num_foreign_tokens(self) -> int:
        """Trained tokens of other peers."""
        return sum(sum(example.lengths) for example in self.examples if example.foreign)

    @property
    def num_text_tokens(self) -> int:
        """Trained tokens that came without sampler log-probabilities."""
        return sum(
            n for example in self.examples for n, known in zip(example.lengths, example.known, strict=True) if not known
        )

    def to_bytes(self) -> bytes:
        """Canonical bytes, compressed; equal batches have equal bytes."""
        return codec.pack(codec.encode(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Batch":
        """The batch that `to_bytes` wrote.

        Raises:
            DecodeError: the bytes are damaged or of another version.
        """
        return codec.decode(cls, codec.unpack(data, MAX_BATCH_BYTES), MAX_BATCH_BYTES)


class Judging(NamedTuple):
    """How groups become advantages. The default is the group's own mean, and all of its answers."""

    rates: Mapping[bytes, float] = {}
    """By group id: my own success rate at such questions, against which a foreign group's rewards are measured."""
    merge: bool = False
    """Whether groups that answer one question are measured against the mean of all of them."""
    subset: int = 0
    """Most answers of a group that are trained on; 0: all."""


def build(groups: Sequence[Group], policy: Speller, me: PeerId, judging: Judging = Judging()) -> Batch:
    """The training batch of these groups, in their order.

    Groups without a learning signal and completions that could not be graded are left out.
    """
    examples: list[Example] = []
    dropped = 0
    merged: dict[bytes, list[float]] = {}
    for group in groups:
        merged.setdefault(group.task.question, []).extend(group.rewards)
    for group in groups:
        if group.has_signal:
            rewards = merged[group.task.question]
            together = judging.merge and len(rewards) > len(group.rewards)
            baseline = sum(rewards) / len(rewards) if together else None
            if group.author != me:
                baseline = judging.rates.get(group.id, baseline)
            example, unusable = _example(group, policy, group.author != me, baseline, judging.subset)
            dropped += unusable
            examples += [example] if example.lengths else []
    return Batch(tuple(examples), dropped)


def _example(group: Group, policy: Speller, foreign: bool, baseline: float | None, subset: int) -> tuple[Example, int]:
    """A group's example, and how many of its completions could not be used."""
    prompt = np.asarray(policy.encode_prompt(group.task.prompt), "<i4")
    gains = advantages([rollout.verdict.reward for rollout in group.rollouts], baseline)
    graded = [(r.completion, gain) for r, gain in zip(group.rollouts, gains, strict=True) if gain is not None]
    spelled = [(*_spelled(completion, policy), gain) for completion, gain in graded]
    usable = [(ids, old, gain) for ids, old, gain in spelled if 0 < len(ids) <= policy.context - len(prompt)]
    kept = [usable[i] for i in most_different([gain for _, _, gain in usable], subset or len(usable))]
    olds = [np.zeros(len(ids), "<f4") if old is None else old for ids, old, _ in kept]
    example = Example(
        prompt=prompt.tobytes(),
        ids=b"".join(ids.tobytes() for ids, _, _ in kept),
        lengths=tuple(len(ids) for ids, _, _ in kept),
        old=b"".join(old.tobytes() for old in olds),
        known=tuple(old is not None for _, old, _ in kept),
        advantages=tuple(gain for _, _, gain in kept),
        foreign=foreign,
    )
    return example, len(graded) - len(usable)


def _spelled(completion: Completion, policy: Speller) -> tuple[Ints, NDArray[np.float32] | None]:
    """Ids of a completion, and the sampler's log-probabilities where they belong to these ids."""
    tokens = completion.tokens
    if tokens is not None and tokens.tokenizer == policy.tokenizer_digest and _well_ended(completion, tokens, policy):
        return np.asarray(tokens.ids, "<i4"), tokens.logprobs_T if tokens.logprobs else None
    if any(isinstance(part, Blob) for part in completion.parts):
        return np.empty(0, "<i4"), None
    return np.asarray(policy.encode_text(completion.text, completion.finish), "<i4"), None


def _well_ended(completion: Completion, tokens: Tokens, policy: Speller) -> bool:
    """Whether every id exists, and a stop id stands at the end of a completion that stopped and nowhere else."""
    if not tokens.ids or max(tokens.ids) >= policy.vocabulary:
        return False
    stops = [i in policy.stop_ids for i in tokens.ids]
    return not any(stops[:-1]) and stops[-1] == (completion.finish == "stop")
