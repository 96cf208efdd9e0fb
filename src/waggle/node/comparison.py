"""Two models on the same questions, question by question: what a gain is worth.

The questions are the noise that both share, so a difference in pairs has a far narrower interval than two rates beside
each other. Intervals are those of Bonett and Price (2012) for paired proportions, with the questions' weights and
rewards between 0 and 1 taken in: 95 %, and honest where nothing or everything differs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from waggle.node.evaluate import Outcome, Z


class Comparison(NamedTuple):
    """One family's rate with the second model less that with the first."""

    family: str
    asked: int
    difference: float
    low: float
    high: float
    better: int
    """Questions that the second answers better."""
    worse: int


def compare(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Comparison]:
    """Each family, then all of them. Questions that either could not be graded on are left out.

    Raises:
        ValueError: they were asked different questions.
    """
    if [one.question for one in first] != [one.question for one in second]:
        raise ValueError("the two were asked different questions")
    pairs = [(a, b.mean - a.mean) for a, b in zip(first, second, strict=True) if a.graded and b.graded]
    families = dict.fromkeys(one.family for one in first)
    found = [_compared(name, [(one.times, gain) for one, gain in pairs if one.family == name]) for name in families]
    return [*found, _compared("all", [(one.times, gain) for one, gain in pairs])]


def _compared(family: str, gains: Sequence[tuple[int, float]]) -> Comparison:
    better, worse = sum(gain > 0 for _, gain in gains), sum(gain < 0 for _, gain in gains)
    total = sum(times for times, _ in gains)
    if not total:
        return Comparison(family, 0, 0.0, -1.0, 1.0, 0, 0)
    up = sum(times * max(0.0, gain) for times, gain in gains) / total
    down = sum(times * max(0.0, -gain) for times, gain in gains) / total
    num = total**2 / sum(times**2 for times, _ in gains)  # effective, by the weights (Kish 1965)
    p, q = (up * num + 1) / (num + 2), (down * num + 1) / (num + 2)
    half = Z * math.sqrt((p + q - (p - q) ** 2) / (num + 2))
    low, high = max(-1.0, p - q - half), min(1.0, p - q + half)
    return Comparison(family, len(gains), up - down, low, high, better, worse)
