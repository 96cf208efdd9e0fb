"""A sampler, a loss and a grader of one's own, named in a setting or a recipe as `examples/own.py:NAME`.

Try them: `waggle experiment recipes/own.toml --arm uniform --arm own`.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from waggle.rl.losses import LossInputs
from waggle.swarm.choosing import Candidate
from waggle.swarm.sampling import Decision


def rarest(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator) -> list[Decision]:
    """The groups that have a signal, of those questions first that I am least often right at."""
    order = [n for n in rng.permutation(len(candidates)).tolist() if candidates[n].group.has_signal]
    order.sort(key=lambda number: candidates[number].rate)
    chosen = set(order[:limit])
    return [
        Decision(one.group.id, number in chosen, "rare" if number in chosen else "not-drawn")
        for number, one in enumerate(candidates)
    ]


def only_right(x: LossInputs) -> Tensor:
    """Learn from right answers alone: `-max(A, 0) logprob`, a number for every token."""
    return -x.advantages_N.clamp(min=0.0) * x.logprobs_N


def same_words(answer: str, truth: str) -> float:
    """1 where an answer has the words of the truth, in whatever order."""
    return float(sorted(answer.casefold().split()) == sorted(truth.casefold().split()))
