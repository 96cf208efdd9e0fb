"""Curves, areas and intervals over seeds: what may be said of an experiment.

The unit is the seed: nodes of one swarm share experience and are not independent. Intervals are Student's, 95 %; two
arms are compared seed by seed, since equal seeds mean equal questions, keys and random numbers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
"""97.5 % quantiles of Student's t for 1 to 16 degrees of freedom; 2.0 is used beyond, a little wide."""
_POWER = 0.85
"""About the 80 % quantile of Student's t for few degrees of freedom (0.94 for 4, 0.84 for many)."""


class Mean(NamedTuple):
    """A mean over seeds and its 95 % interval. Example: `Mean(0.41, 0.36, 0.46, 5)`."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def t_quantile(degrees: int) -> float:
    """Student's 97.5 % quantile."""
    return _T[degrees - 1] if degrees <= len(_T) else 2.0


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and interval; infinitely wide for a single seed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a mean needs a value")
    middle, num = float(np.mean(values)), len(values)
    if num < 2:
        return Mean(middle, -math.inf, math.inf, num)
    half = t_quantile(num - 1) * float(np.std(values, ddof=1)) / math.sqrt(num)
    return Mean(middle, middle - half, middle + half, num)


def smallest_found(differences: Sequence[float], seeds: int = 0) -> float:
    """The true difference that so many seeds, as unlike as these, would show in four of five experiments.

    Args:
        seeds: how many there will be; as many as there are differences by default.
    """
    num = seeds or len(differences)
    if len(differences) < 2 or num < 2:
        return math.inf
    return (t_quantile(num - 1) + _POWER) * float(np.std(differences, ddof=1)) / math.sqrt(num)


def area(x: Sequence[float], y: Sequence[float], budget: float) -> float:
    """Mean height of a curve above its own first value, from 0 to a budget, by the trapezoid rule.

    Example: a straight line from 0.1 to 0.5 over the budget has 0.2.
    """
    inside = [(a, b) for a, b in zip(x, y, strict=True) if a < budget]
    ends = [*inside, (budget, at(x, y, budget))]
    xs, ys = np.array([a for a, _ in ends]), np.array([b for _, b in ends])
    return float(np.trapezoid(ys - y[0], xs)) / budget if budget > 0 else 0.0


def at(x: Sequence[float], y: Sequence[float], place: float) -> float:
    """The height of a curve at a place, between its points in a straight line, beyond them as the last."""
    return float(np.interp(place, x, y))


def reached(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """Where a curve first is at a level; infinity where it never is."""
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if y0 >= level:
            return x0
        if y1 >= level:
            return x0 + (x1 - x0) * (level - y0) / (y1 - y0)
    return math.inf


def swing(y: Sequence[float]) -> float:
    """Standard deviation of the later half of a curve about its own straight line."""
    later = np.asarray(y[len(y) // 2 :])
    if len(later) < 3:
        return 0.0
    places = np.arange(len(later))
    slope, start = np.polyfit(places, later, 1)
    return float(np.std(later - (slope * places + start)))
