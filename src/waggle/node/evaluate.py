"""What a model can do on its own: answers to held-out questions, with intervals.

The only figures about learning that Waggle states (docs/design.md, section 3, rule 8). Questions come from a
reserved bucket by the digest of the question; row seeds depend on the question alone, so two checkpoints
answer the same questions with the same random numbers and can be compared in pairs.

Intervals are Wilson score intervals (Wilson 1927), 95 %: they stay inside [0, 1] and are honest near 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from waggle.core.rng import seed_for
from waggle.core.types import Completion, Noun, Sampling, Task, Verdict

_Z = 1.959963984540054

Generate = Callable[[Sequence[Task], int, Sampling], list[list[Completion]]]


class Grades(Protocol):
    """Something that grades a list of answers."""

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """A verdict for every (task, answer)."""
        ...


class FamilyScore(Noun, frozen=True):
    """Correct answers of one family. Example: `FamilyScore("chain_sum", 100, 42.0, 0)`."""

    family: str
    asked: int
    correct: float
    ungraded: int

    @property
    def rate(self) -> float:
        """pass@1: the mean reward over the answers that could be graded."""
        graded = self.asked - self.ungraded
        return self.correct / graded if graded else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the rate."""
        return wilson(self.correct, self.asked - self.ungraded)


class Score(Noun, frozen=True):
    """One evaluation. `round` is the node's round; `questions` their number in all."""

    round: int
    families: tuple[FamilyScore, ...]
    tokens: int

    def over(self, families: Sequence[str] = ()) -> FamilyScore:
        """The sum over some families, or over all."""
        chosen = [f for f in self.families if not families or f.family in families]
        return FamilyScore(
            "all", sum(f.asked for f in chosen), sum(f.correct for f in chosen), sum(f.ungraded for f in chosen)
        )


def wilson(correct: float, asked: int) -> tuple[float, float]:
    """95 % Wilson score interval for `correct` of `asked`; (0, 1) where nothing was asked."""
    if asked == 0:
        return 0.0, 1.0
    rate = correct / asked
    shrink = 1 + _Z * _Z / asked
    centre = (rate + _Z * _Z / (2 * asked)) / shrink
    half = _Z / shrink * math.sqrt(rate * (1 - rate) / asked + _Z * _Z / (4 * asked * asked))
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate(
    generate: Generate, grader: Grades, tasks: Sequence[Task], labels: dict[bytes, str], number: int, temperature: float
) -> Score:
    """Ask every question once and grade the answers.

    Args:
        tasks: held-out questions.
        labels: family digest to the name people see.
        number: the node's round, for the record.
        temperature: of the answers; 0 is greedy.
    """
    sampling = Sampling(temperature=temperature, max_tokens=65536, seed=seed_for("evaluate"))
    answers = [rows[0] for rows in generate(tasks, 1, sampling)]
    verdicts = grader.grade([(task, answer.text) for task, answer in zip(tasks, answers, strict=True)])
    families = []
    for label in dict.fromkeys(labels[task.ref.config] for task in tasks):
        mine = [v.reward for v, t in zip(verdicts, tasks, strict=True) if labels[t.ref.config] == label]
        graded = [reward for reward in mine if reward is not None]
        families.append(FamilyScore(label, len(mine), float(sum(graded)), len(mine) - len(graded)))
    return Score(number, tuple(families), sum(len(a.tokens.ids) for a in answers if a.tokens))
