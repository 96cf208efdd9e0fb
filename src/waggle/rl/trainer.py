"""One optimiser step on one batch: pack, score row by row, accumulate, clip, AdamW.

The gradient is that of (sum of token losses) / (number of trainable tokens of the step): rows add sums, and
one scaling at the end divides by the tokens that were summed, so that any split into rows gives the same step.
A batch without a signal is a step that does nothing. A loss or gradient that is not a number costs the step,
not the run; three in a row end it. Left out: weight decay, several epochs over a batch, a reference model.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from waggle.core.config import LearnConfig
from waggle.core.errors import RunError
from waggle.policy.logprobs import row_logprobs
from waggle.policy.machine import trim
from waggle.policy.policy import Policy
from waggle.policy.tree import Packing, Row, pack
from waggle.rl.activations import Activations
from waggle.rl.batch import Batch
from waggle.rl.losses import LossInputs, clipped, loss_of
from waggle.rl.optimiser import AdamW
from waggle.rl.window import unlikely

MAX_SKIPS = 3
"""Steps skipped in a row that end the run."""
LEARNING_RATE, LEARNING_RATE_LORA = 3e-5, 2e-4
"""Vetted defaults for all weights and for LoRA."""


@dataclass(frozen=True)
class StepReport:
    """What one step did. Means are over the trained tokens; ratios and differences are against the sampler."""

    skipped: bool = True
    """Whether the weights stayed as they were: nothing to learn from, or a number that is not finite."""
    num_tokens: int = 0
    """Trained tokens; 0 for a batch without a signal."""
    num_nonfinite: int = 0
    """Tokens left out because a number of theirs is not finite."""
    num_rows: int = 0
    num_computed: int = 0
    """Tokens that went through the model, prompts included."""
    learning_rate: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    loss: float = 0.0
    entropy: float = 0.0
    """Mean of the policy's entropy where a token was drawn, in nats."""
    ratio_mean: float = 0.0
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    """Share of tokens whose negative advantage is cut off by the lower bound."""
    clipped_high: float = 0.0
    diff_mean_own: float = 0.0
    """Mean of |logprob - sampler's logprob| over own tokens, in nats."""
    diff_max_own: float = 0.0
    diff_mean_foreign: float = 0.0
    diff_max_foreign: float = 0.0
    outside: float = 0.0
    """Share of the better foreign answers that are outside the likelihood window."""
    inside: tuple[float, ...] = ()
    """Of each example's better answers, the share within the window; empty without one. Not among the numbers."""

    def numbers(self) -> dict[str, float]:
        """Every field that is a number, for the record."""
        return {name: float(value) for name, value in asdict(self).items() if name != "inside"}


@dataclass(frozen=True)
class _Trained:
    """The trained tokens of a batch in its order, [N] each."""

    old_N: NDArray[np.float32]
    known_N: NDArray[np.bool_]
    advantages_N: NDArray[np.float32]
    foreign_N: NDArray[np.bool_]
    answer_N: NDArray[np.int32]
    """Number of the answer that a token belongs to."""

    @classmethod
    def of(cls, batch: Batch) -> "_Trained":
        lengths = [length for example in batch.examples for length in example.lengths]
        return cls(
            np.concatenate([e.old_N for e in batch.examples]),
            np.concatenate([e.per_token(e.known) for e in batch.examples]) > 0,
            np.concatenate([e.per_token(e.advantages) for e in batch.examples]),
            np.concatenate([e.per_token([e.foreign] * len(e.lengths)) for e in batch.examples]) > 0,
            np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        )


@dataclass(frozen=True)
class _Seen:
    """What a row's forward pass showed, per finite token, and how many tokens were not finite."""

    loss: float
    values: NDArray[np.float32]
    """[6, n]: entropy, ratio, clipped low, clipped high, |difference|, foreign."""
    nonfinite: int
    outside: NDArray[np.int32]
    """Foreign answers outside the window."""


class Trainer:
    """A policy and its optimiser. Example: `Trainer(load("tiny"), LearnConfig()).step(batch)`.

    Args:
        policy: whose `parameters()` are moved.
        learn: loss, step size, clipping, tokens per row.
        temperature: of the sampler; log-probabilities are those at this temperature.
        packing: `tree`, or `plain` for models that do not compute trees (`policy.logprobs.choose_packing`).
        activation_bytes: bound on what the layers keep for the backward pass; 0 takes the default.
    """

    def __init__(
        self,
        policy: Policy,
        learn: LearnConfig,
        temperature: float = 1.0,
        packing: Packing = "tree",
        activation_bytes: int = 0,
    ) -> None:
        self._policy, self._learn, self._temperature, self._packing = policy, learn, temperature, packing
        self._loss = loss_of(learn.loss)
        self._activations = Activations(policy, activation_bytes)
        self.restart()

    def restart(self) -> None:
        """Begin with a fresh optimiser, its warm-up included."""
        rate = self._learn.learning_rate or (LEARNING_RATE_LORA if self._policy.lora else LEARNING_RATE)
        self.optimiser = AdamW(self._policy.parameters(), rate, self._learn.warmup)

    def step(self, batch: Batch) -> StepReport:
        """Train on a batch once.

        Raises:
            RunError: this is the third step in a row whose loss or gradient is not finite.
        """
        if not batch.num_tokens:
            return StepReport()
        self.optimiser.forget()  # of a step that was interrupted
        rows, seen = self.accumulate(batch)
        num_tokens = sum(s.values.shape[1] for s in seen)
        rate = self.optimiser.learning_rate
        norm = self.optimiser.scale(1 / max(1, num_tokens), self._learn.grad_clip)
        loss = sum(s.loss for s in seen) / max(1, num_tokens)
        skipped = not (num_tokens and math.isfinite(norm) and math.isfinite(loss))
        self._move(skipped)
        trim()
        report = _report(seen, rows, skipped=skipped, learning_rate=rate, grad_norm=norm, loss=loss)
        return replace(report, **_insides(batch, seen)) if self._learn.window else report

    def accumulate(self, batch: Batch) -> tuple[list[Row], list[_Seen]]:
        """Add the gradient of the sum of the batch's token losses to `.grad`, one row after another."""
        rows = pack([e.prompted for e in batch.examples], self._learn.token_budget, self._packing)
        rows.sort(key=lambda row: -len(row.ids_T))  # the longest first, while gradients take no memory
        trained = _Trained.of(batch)
        return rows, [self._row(row, trained) for row in rows]

    def save_state(self, file: Path) -> None:
        """Write the optimiser; see `AdamW.save`."""
        self.optimiser.save(file)

    def load_state(self, file: Path) -> None:
        """Restore the optimiser; see `AdamW.load`."""
        self.optimiser.load(file)

    def _row(self, row: Row, trained: _Trained) -> _Seen:
        with self._policy.autocast(), self._activations.recomputing(len(row.ids_T)):
            logprobs_N, entropy_N = row_logprobs(self._policy.model, row, self._temperature)
        outside_N = self._outside(row, trained, logprobs_N)
        x = self._inputs(row, trained, logprobs_N, outside_N)
        finite_N = torch.isfinite(x.logprobs_N.detach() + x.old_N + x.advantages_N)
        x = _only(x, finite_N)
        loss = self._loss(x).sum()
        loss.backward()
        answers = np.unique(trained.answer_N[row.index_N[outside_N]])
        return _Seen(float(loss.detach()), _values(x, entropy_N[finite_N]), int((~finite_N).sum()), answers)

    def _inputs(self, row: Row, trained: _Trained, logprobs_N: Tensor, outside_N: NDArray[np.bool_]) -> LossInputs:
        old_N, known_N, advantages_N, foreign_N = (
            torch.from_numpy(values_N[row.index_N]).to(logprobs_N.device)
            for values_N in (trained.old_N, trained.known_N, trained.advantages_N, trained.foreign_N)
        )
        old_N = torch.where(known_N, old_N, logprobs_N.detach())
        advantages_N = torch.where(foreign_N & ~known_N, advantages_N.clamp(min=0), advantages_N)
        advantages_N = torch.where(torch.from_numpy(outside_N).to(foreign_N.device), 0.0, advantages_N)
        learn = self._learn
        return LossInputs(logprobs_N, old_N, advantages_N, foreign_N, learn.clip_low, learn.clip_high)

    def _outside(self, row: Row, trained: _Trained, logprobs_N: Tensor) -> NDArray[np.bool_]:
        """Tokens of foreign answers outside the window, in the order of the row; rows hold whole answers."""
        foreign_N = trained.foreign_N[row.index_N]
        if not (self._learn.window and foreign_N.any()):
            return np.zeros(len(foreign_N), bool)
        order_N = np.argsort(row.index_N)
        ordered_N = logprobs_N.detach().float().cpu().numpy()[order_N]
        outside_N = np.empty(len(order_N), bool)
        outside_N[order_N] = unlikely(ordered_N, trained.answer_N[row.index_N[order_N]], self._learn.window)
        return foreign_N & outside_N

    def _move(self, skipped: bool) -> None:
        if not skipped:
            self.optimiser.skips = 0
            self.optimiser.step()
            return
        self.optimiser.forget()
        self.optimiser.skips += 1
        if self.optimiser.skips >= MAX_SKIPS:
            raise RunError(
                f"{MAX_SKIPS} steps in a row gave a loss or gradient that is not a finite number; "
                "resume from a checkpoint with a smaller learn.learning_rate or model.precision = 'float32'"
            )


def _only(x: LossInputs, keep_N: Tensor) -> LossInputs:
    return LossInputs(
        x.logprobs_N[keep_N], x.old_N[keep_N], x.advantages_N[keep_N], x.foreign_N[keep_N], x.clip_low, x.clip_high
    )


def _values(x: LossInputs, entropy_N: Tensor) -> NDArray[np.float32]:
    diff_N = (x.logprobs_N.detach() - x.old_N).abs()
    columns = (entropy_N, x.ratio_N.detach(), *clipped(x), diff_N, x.foreign_N)
    return torch.stack([column.float() for column in columns]).cpu().numpy()


def _report(seen: Sequence[_Seen], rows: Sequence[Row], **known: float) -> StepReport:
    entropy_N, ratio_N, low_N, high_N, diff_N, foreign_N = np.concatenate([s.values for s in seen], axis=1)
    own_N, peers_N = diff_N[foreign_N == 0], diff_N[foreign_N > 0]
    return StepReport(
        num_tokens=len(ratio_N),
        num_nonfinite=sum(s.nonfinite for s in seen),
        num_rows=len(rows),
        num_computed=sum(len(row.ids_T) for row in rows),
        entropy=_mean(entropy_N),
        ratio_mean=_mean(ratio_N),
        ratio_max=float(ratio_N.max(initial=0.0)),
        clipped_low=_mean(low_N),
        clipped_high=_mean(high_N),
        diff_mean_own=_mean(own_N),
        diff_max_own=float(own_N.max(initial=0.0)),
        diff_mean_foreign=_mean(peers_N),
        diff_max_foreign=float(peers_N.max(initial=0.0)),
        **known,  # type: ignore[arg-type]
    )


def _insides(batch: Batch, seen: Sequence[_Seen]) -> dict[str, Any]:
    """What of the better answers was within the window, by example, and foreign ones' share outside it."""
    outside = {int(answer) for one in seen for answer in one.outside}
    inside, first, total, cut = [], 0, 0, 0
    for example in batch.examples:
        better = [first + place for place, gain in enumerate(example.advantages) if gain > 0]
        first += len(example.advantages)
        num = len(outside.intersection(better))
        inside.append(1 - num / len(better) if better else 1.0)
        total, cut = (total + len(better), cut + num) if example.foreign else (total, cut)
    return {"inside": tuple(inside), "outside": cut / total if total else 0.0}


def _mean(values: NDArray[np.float32]) -> float:
    return float(values.mean()) if values.size else 0.0
