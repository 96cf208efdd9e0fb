"""What a node learns with: something that answers, and that can be moved by one batch.

`Learner` is the seam between the round and the model. `ModelLearner` is a language model and its optimiser;
`node/scripted.py` holds the twin that simulations and tests use. Batches are canonical bytes, since the journal
stores them and a resumed node replays their steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from waggle.core.codec import digest_bytes
from waggle.core.config import Config
from waggle.core.types import Completion, Group, PolicyRef, Sampling, Task
from waggle.node import probes
from waggle.policy.checkpoint import load_weights, save_model, save_weights
from waggle.policy.load import load
from waggle.policy.machine import give_back
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.policy.tree import Packing
from waggle.rl.batch import Batch, Judging, build
from waggle.rl.trainer import Trainer

NO_RATES: Mapping[bytes, float] = {}


@dataclass(frozen=True)
class Step:
    """What one optimiser step did: numbers for the record, and whether the weights moved."""

    moved: bool
    numbers: dict[str, float]
    inside: tuple[float, ...] = ()
    """Of each group that was trained on, the share of right answers within the window; empty without one."""


class Learner(Protocol):
    """Something that answers questions and learns from groups."""

    model: str
    tokenizer: bytes
    """Digest of its tokenizer, 32 bytes; empty where it has none."""
    learns: bool
    """Whether steps move it, so that there is something to evaluate and to export."""

    def base_digest(self) -> bytes:
        """Content of the weights that the run started from, 32 bytes."""
        ...

    def describe(self) -> str:
        """How and where it computes, and why, in one line."""
        ...

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        """`num` completions for each task."""
        ...

    def spells(self, completion: Completion) -> bool:
        """Whether a completion's ids, of my tokenizer, spell its text and end as it says."""
        ...

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        """The training batch of these groups; `rates`: by a foreign one's id, what its rewards are measured against."""
        ...

    def step(self, batch: bytes) -> Step:
        """One optimiser step on a batch."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and optimiser into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        ...

    def export(self, folder: Path) -> None:
        """Write a model that others can load into an existing folder."""
        ...

    def return_to(self, folder: Path) -> None:
        """Take the weights that `export` wrote; the optimiser starts anew."""
        ...

    def prose_bits(self) -> float:
        """Bits a byte that a plain text of the program's costs, which no task is about; 0 where that means nothing."""
        ...


class Giver:
    """The half of a `Learner` that learns, for one that only gives text."""

    tokenizer = b""
    learns = False

    def spells(self, completion: Completion) -> bool:
        return completion.tokens is None

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        return b""

    def step(self, batch: bytes) -> Step:
        return Step(False, {})

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...
    def export(self, folder: Path) -> None: ...
    def return_to(self, folder: Path) -> None: ...
    def prose_bits(self) -> float:
        return 0.0


def lineage(parent: bytes, batch: bytes) -> bytes:
    """The lineage digest after a step: it commits to the base weights and to every batch since."""
    return digest_bytes("Lineage", parent + digest_bytes("Batch", batch))


def policy_ref(learner: Learner, weights: bytes, step: int) -> PolicyRef:
    """Which weights are answering now."""
    return PolicyRef(learner.model, weights, step)


class ModelLearner:
    """A language model with its optimiser.

    Args:
        policy: the model, its tokenizer and their ways.
        config: of the node.
        packing: how rows are laid out in training, see `policy.logprobs.choose_packing`.
        activation_bytes: what training may keep of activations; 0 leaves it to the trainer.
    """

    learns = True

    def __init__(self, policy: Policy, config: Config, packing: Packing = "tree", activation_bytes: int = 0) -> None:
        self.policy, self.model, self.tokenizer = policy, policy.name, policy.tokenizer_digest
        self.trainer = Trainer(policy, config.learn, config.round.temperature, packing, activation_bytes)
        self._learn = config.learn
        self._base = policy.content_digest()
        self._special = {*policy.stop_ids, *policy.tokenizer.all_special_ids}

    def base_digest(self) -> bytes:
        return self._base

    def describe(self) -> str:
        return f"{self.model}: {self.policy.choice}"

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return generate(self.policy, tasks, num, sampling)

    def spells(self, completion: Completion) -> bool:
        tokens = completion.tokens
        if tokens is None or not tokens.ids or max(tokens.ids) >= self.policy.vocabulary:
            return tokens is None
        ended = completion.finish == "stop"
        body = tokens.ids[:-1] if ended else tokens.ids
        if ended != (tokens.ids[-1] in self.policy.stop_ids) or not self._special.isdisjoint(body):
            return False
        return self.policy.decode(tokens.ids) == completion.text

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        return build(groups, self.policy, me, Judging(rates, self._learn.merge, self._learn.subset)).to_bytes()

    def step(self, batch: bytes) -> Step:
        report = self.trainer.step(Batch.from_bytes(batch))
        return Step(not report.skipped, report.numbers(), report.inside)

    def save(self, folder: Path) -> None:
        save_weights(self.policy, folder / "weights.safetensors")
        self.trainer.save_state(folder / "optimiser.safetensors")
        give_back()  # every few minutes is enough to keep a heap from growing for weeks

    def load(self, folder: Path) -> None:
        load_weights(self.policy, folder / "weights.safetensors")
        self.trainer.load_state(folder / "optimiser.safetensors")

    def export(self, folder: Path) -> None:
        save_model(self.policy, folder)

    def return_to(self, folder: Path) -> None:
        device, precision = str(self.policy.device), self.policy.precision
        self.policy.copy_from(load(str(folder), device=device, precision=precision))
        self.trainer.restart()

    def prose_bits(self) -> float:
        return probes.bits_per_byte(self.policy, probes.prose())
