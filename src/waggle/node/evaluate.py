"""What a model can do on its own: answers to held-out questions, with intervals.

The only figures about learning that Waggle states (docs/design.md, section 3, rule 8). Questions come from a
reserved bucket by the digest of the question; row seeds depend on the question alone, so two checkpoints
answer the same questions with the same random numbers and can be compared in pairs.

Intervals are Wilson score intervals (Wilson 1927), 95 %: they stay inside [0, 1] and are honest near 0.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from waggle.core.rng import seed_for
from waggle.core.types import Completion, Noun, Sampling, Task, Verdict

Z = 1.959963984540054
"""Of a 95 % interval."""

Generate = Callable[[Sequence[Task], int, Sampling], list[list[Completion]]]


class Grades(Protocol):
    """Something that grades a list of answers."""

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """A verdict for every (task, answer)."""
        ...


class Outcome(NamedTuple):
    """What came of one question: the rewards of its answers, none where one could not be graded.

    Example: `Outcome(b"..32..", "chain_sum", "7", 1, (1.0, 0.0, None))`.
    """

    question: bytes
    family: str
    truth: str
    times: int
    """How often it counts."""
    rewards: tuple[float | None, ...]

    @property
    def graded(self) -> list[float]:
        """Rewards of the answers that could be graded."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def mean(self) -> float:
        """The mean of those; there has to be one."""
        return sum(self.graded) / len(self.graded)


class FamilyScore(Noun, frozen=True):
    """Answers to the distinct questions of one family. Example: `FamilyScore("chain_sum", 100, 42.0, 0)`.

    Questions count as often as the family draws them, scaled so that the counts of the graded ones sum to their
    number; `squares` is the sum of the squared counts (0: all counts are 1).
    """

    family: str
    asked: int
    correct: float
    ungraded: int
    commonest: float = 0.0
    """Questions whose truth is the most frequent one: what always saying the same would get."""
    squares: float = 0.0

    @property
    def graded(self) -> int:
        """Questions whose answer could be graded."""
        return self.asked - self.ungraded

    @property
    def rate(self) -> float:
        """pass@1: the mean reward over the answers that could be graded."""
        return self.correct / self.graded if self.graded else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the rate, for the effective number of questions (Kish 1965)."""
        effective = self.graded**2 / self.squares if self.squares else float(self.graded)
        return wilson(self.rate * effective, effective)


class Score(Noun, frozen=True):
    """One evaluation. `round` is the node's round; `questions` their number in all."""

    round: int
    families: tuple[FamilyScore, ...]
    tokens: int

    def over(self, families: Sequence[str] = ()) -> FamilyScore:
        """The sum over some families, or over all."""
        chosen = [f for f in self.families if not families or f.family in families]
        squares = sum(f.squares or f.graded for f in chosen)
        return FamilyScore(
            "all",
            sum(f.asked for f in chosen),
            sum(f.correct for f in chosen),
            sum(f.ungraded for f in chosen),
            sum(f.commonest for f in chosen),
            squares,
        )


def wilson(correct: float, asked: float) -> tuple[float, float]:
    """95 % Wilson score interval for `correct` of `asked`; (0, 1) where nothing was asked."""
    if asked == 0:
        return 0.0, 1.0
    rate = correct / asked
    shrink = 1 + Z * Z / asked
    centre = (rate + Z * Z / (2 * asked)) / shrink
    half = Z / shrink * math.sqrt(rate * (1 - rate) / asked + Z * Z / (4 * asked * asked))
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate(
    generate: Generate,
    grader: Grades,
    tasks: Sequence[Task],
    labels: dict[bytes, str],
    number: int,
    temperature: float,
    times: Sequence[int] = (),
) -> Score:
    """Ask every question once and grade the answers; see `ask`."""
    outcomes, tokens = ask(generate, grader, tasks, labels, 1, temperature, times)
    return Score(number, scores(outcomes), tokens)


def ask(
    generate: Generate,
    grader: Grades,
    tasks: Sequence[Task],
    labels: dict[bytes, str],
    num: int,
    temperature: float,
    times: Sequence[int] = (),
) -> tuple[list[Outcome], int]:
    """Ask every question `num` times and grade the answers. Returns what came of each, and the tokens it took.

    Args:
        tasks: distinct held-out questions.
        labels: family digest to the name people see.
        temperature: of the answers; 0 is greedy.
        times: how often each question counts; once each where left out.
    """
    sampling = Sampling(temperature=temperature, max_tokens=65536, seed=seed_for("evaluate"))
    answers = generate(tasks, num, sampling)
    asked = [(task, answer.text) for task, rows in zip(tasks, answers, strict=True) for answer in rows]
    rewards = iter([verdict.reward for verdict in grader.grade(asked)])
    outcomes = [
        Outcome(task.question, labels[task.ref.config], task.truth, count, tuple(next(rewards) for _ in range(num)))
        for task, count in zip(tasks, times or [1] * len(tasks), strict=True)
    ]
    return outcomes, sum(len(answer.tokens.ids) for rows in answers for answer in rows if answer.tokens)


def scores(outcomes: Sequence[Outcome], k: int = 1) -> tuple[FamilyScore, ...]:
    """pass@k of every family, in the order in which they come; pass@1 is the mean reward.

    pass@k is the chance that one of k answers is right, without bias from n >= k of them (Chen et al. 2021, eq. 1).
    Where questions were answered several times the interval, for so many questions, is a little too wide.
    """
    families = dict.fromkeys(outcome.family for outcome in outcomes)
    return tuple(_family_score(name, [one for one in outcomes if one.family == name], k) for name in families)


def _family_score(label: str, asked: Sequence[Outcome], k: int) -> FamilyScore:
    graded = [(one.mean if k == 1 else _pass_at(one.graded, k), one.times) for one in asked if one.graded]
    scale = len(graded) / max(1, sum(times for _, times in graded))
    truths: Counter[str] = Counter()
    for one in asked:
        truths[one.truth] += one.times
    commonest = max(truths.values()) / sum(truths.values()) * len(graded)
    correct = sum(scale * times * value for value, times in graded)
    squares = sum((scale * times) ** 2 for _, times in graded)
    return FamilyScore(label, len(asked), correct, len(asked) - len(graded), commonest, squares)


def _pass_at(rewards: Sequence[float], k: int) -> float:
    """The chance of a right answer among k of these."""
    num, wrong = len(rewards), sum(reward < 1 for reward in rewards)
    return 1.0 - math.comb(wrong, min(k, num)) / math.comb(num, min(k, num))
