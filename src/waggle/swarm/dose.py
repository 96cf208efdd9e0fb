"""How much of peers' experience is taken now: all of J while it does no harm, less or none while it may.

The judge is the held-out rate on the steering questions. One evaluation that is lower than the best by more than chance
allows (`DOUBT` standard errors of a difference) halves the dose; a second one in a row ends it: the node returns to its
best weights and trains alone for `ALONE` evaluations. Each evaluation without such a fall gives a quarter back. So
sharing can cost a node what happens between two evaluations, and not more; whether it helps is not asked here.
"""

import math

from waggle.core.types import Noun

DOUBT = 2.0
ALONE = 4
"""Evaluations for which a node trains alone after two falls in a row."""


class Dose(Noun, frozen=True):
    """Example: `Dose()` takes all of J; `Dose(0.0, 2, 3)` takes none for three more evaluations."""

    level: float = 1.0
    falls: int = 0
    """Evaluations in a row that were too low."""
    alone: int = 0
    """Evaluations for which nothing is taken yet."""
    back: bool = False
    """Whether the node is to return to its best weights before it goes on: taking has just ended."""

    def of(self, foreign: int) -> int:
        """How many foreign groups to take of at most `foreign`; at least one while the dose is above zero."""
        return max(1, round(self.level * foreign)) if self.level > 0 and foreign else 0


def next_dose(dose: Dose, rate: float, best: float, asked: int) -> Dose:
    """The dose after an evaluation.

    Args:
        rate: held-out rate now.
        best: the best so far, below 0 before the first.
        asked: questions of each evaluation.
    """
    fell = best >= 0 and best - rate > DOUBT * _error(rate, best, asked)
    if dose.alone > 1:
        return Dose(0.0, 0, dose.alone - 1)
    if dose.alone == 1:
        return Dose(0.25)
    if not fell:
        return Dose(min(1.0, dose.level + 0.25))
    return Dose(0.0, 0, ALONE, back=True) if dose.falls else Dose(dose.level / 2, 1)


def _error(rate: float, best: float, asked: int) -> float:
    """Standard error of the difference of two rates of so many answers each, both kept off 0 and 1."""
    both = [min(max(value, 1 / asked), 1 - 1 / asked) for value in (rate, best)]
    return math.sqrt(sum(value * (1 - value) for value in both) / asked)
