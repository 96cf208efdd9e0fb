"""Waggle's own way to choose foreign groups: by what they would teach me, and with bounds on what any peer can do.

The weight of a group is a product of factors, each in (0, 1] and each of which can be left out (`share.factors`):

- `learnability`: (1 - p) max(p, q), with p my own running rate at such questions and q the share of right answers in
  the group. Where I am always right there is nothing to learn; where I never am, only others' successes teach. (At
  q <= p it is p(1 - p), the variance of my own reward.)
- `freshness`: halves with every `HALF_LIFE` of my rounds that the group has waited.
- `novelty`: 1 over the number of groups in the pool whose right answers are the same text to the same question, and
  over 1 plus the times that I have trained on it.
- `trust`: what the peer's past says, see `trust.py`.
- `likeness`: how much of what its author gets right in this family is what I might have said, see `likeness.py`; a
  group that is drawn is also taken with just this chance, so that of peers who are all unlike me little is taken.
- `brevity`: how long the group's right answers are beside what is usual for the family, 1 up to twice as long.
- `balance`: 1 over the groups of the same family that are already chosen for this step.

Drawn without replacement, a share of draws evenly whatever the weights, so that no estimate of mine can shut anybody
out for ever. A peer fills at most its quota of a step. Groups without a signal are never drawn.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from waggle.core.types import Group

FACTORS = ("learnability", "freshness", "novelty", "trust", "likeness", "brevity", "balance")
HALF_LIFE = 8.0
"""My rounds after which a group's freshness has halved."""
LEAST = 1e-3
"""The least that a factor can be, so that products stay comparable."""


class Candidate(NamedTuple):
    """A group of the pool and what I know of it. Example: `Candidate(group, age=3, uses=0, rate=0.1, trust=1.0)`."""

    group: Group
    age: int
    """My rounds since it came."""
    uses: int
    rate: float
    """My own running rate at such questions."""
    trust: float
    likeness: float = 1.0


class Rules(NamedTuple):
    """How groups are chosen, from the configuration."""

    factors: tuple[str, ...] = FACTORS
    even: float = 0.1
    """Share of draws that look at no weight."""
    quota: float = 0.5
    """Most of a step's foreign groups that come from one peer."""


class Choice(NamedTuple):
    """What came of a candidate, and the factors of its weight."""

    reason: str
    factors: dict[str, float]


def choose(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator, rules: Rules) -> list[Choice]:
    """A choice for every candidate, in their order; at most `limit` have the reason `drawn`."""
    factors = _factors(candidates, rules.factors)
    weights = [_product(f) if c.group.has_signal else 0.0 for c, f in zip(candidates, factors, strict=True)]
    reasons = ["not-drawn" if c.group.has_signal else "no-signal" for c in candidates]
    of_peer: Counter[bytes] = Counter()
    of_family: Counter[bytes] = Counter()
    most = max(1, int(rules.quota * limit))
    left = [i for i, reason in enumerate(reasons) if reason == "not-drawn"]
    places = limit
    while left and places:
        pick = left.pop(_draw([_now(weights[i], candidates[i], of_family, rules) for i in left], rng, rules.even))
        group = candidates[pick].group
        if of_peer[group.author] >= most:
            reasons[pick] = "quota"
            continue
        places -= 1
        if (chance := factors[pick].get("likeness", 1.0)) < 1 and rng.random() >= chance:
            reasons[pick] = "unlike-mine"
            continue
        reasons[pick] = "drawn"
        of_peer[group.author] += 1
        of_family[group.task.ref.config] += 1
    return [Choice(reason, f) for reason, f in zip(reasons, factors, strict=True)]


def _draw(weights: Sequence[float], rng: np.random.Generator, even: float) -> int:
    if rng.random() < even:
        return int(rng.integers(len(weights)))
    total_N = np.cumsum(weights)
    return min(int(np.searchsorted(total_N, rng.random() * total_N[-1], side="right")), len(weights) - 1)


def _now(weight: float, candidate: Candidate, of_family: Counter[bytes], rules: Rules) -> float:
    """The weight with what is chosen already."""
    return weight / (1 + of_family[candidate.group.task.ref.config]) if "balance" in rules.factors else weight


def _product(factors: dict[str, float]) -> float:
    return float(np.prod([max(LEAST, value) for value in factors.values()]))


def _factors(candidates: Sequence[Candidate], names: Sequence[str]) -> list[dict[str, float]]:
    sames = Counter(_successes(c.group) for c in candidates)
    usual = _usual_lengths(candidates)
    every: dict[str, Callable[[Candidate], float]] = {
        "learnability": learnability,
        "freshness": lambda c: 0.5 ** (c.age / HALF_LIFE),
        "novelty": lambda c: 1 / (sames[_successes(c.group)] * (1 + c.uses)),
        "trust": lambda c: c.trust,
        "likeness": lambda c: c.likeness,
        "brevity": lambda c: _brevity(c.group, usual),
    }
    return [{name: round(every[name](c), 4) for name in names if name in every} for c in candidates]


def learnability(candidate: Candidate) -> float:
    """What a group's right answers can teach me, see above."""
    rewards = candidate.group.rewards
    right = sum(rewards) / len(rewards) if rewards else 0.0
    return (1 - candidate.rate) * max(candidate.rate, right)


def _successes(group: Group) -> tuple[bytes, frozenset[str]]:
    """The question and the right answers to it, whitespace apart."""
    right = [r.completion.text for r in group.rollouts if r.verdict.reward == 1]
    return group.task.question, frozenset(" ".join(text.split()) for text in right)


def _length(group: Group) -> float:
    """Characters of its right answers; 0 where it has none."""
    right = [len(r.completion.text) for r in group.rollouts if r.verdict.reward == 1]
    return statistics.fmean(right) if right else 0.0


def _usual_lengths(candidates: Sequence[Candidate]) -> dict[bytes, float]:
    """The median over the peers of a family, so that no single one sets it."""
    by_peer: dict[bytes, dict[bytes, list[float]]] = {}
    for candidate in candidates:
        if length := _length(candidate.group):
            peers = by_peer.setdefault(candidate.group.task.ref.config, {})
            peers.setdefault(candidate.group.author, []).append(length)
    return {
        family: statistics.median(statistics.fmean(lengths) for lengths in peers.values())
        for family, peers in by_peer.items()
    }


def _brevity(group: Group, usual: dict[bytes, float]) -> float:
    length, normal = _length(group), usual.get(group.task.ref.config, 0.0)
    return min(1.0, 2 * normal / length) ** 2 if length and normal else 1.0
