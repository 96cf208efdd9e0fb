"""What I think of my own success: a running mean of my rewards, by family and by how long the truth is.

Foreign groups are chosen and judged by it: a group teaches me something where I am sometimes right, or hardly ever
while its author was. The length of the truth stands for difficulty, since it is known of every question. A bin that has
seen little leans on its family, and a family on nothing: before the first answer the rate is 0.
"""

from collections.abc import Iterable

from waggle.core.types import Digest, Group, Noun, Task

FADE = 0.9
"""What a bin's past still counts after a round with new answers in it."""
_LEANS = 8.0
"""Answers that a family's rate is worth in each of its bins."""


class Estimate(Noun, frozen=True):
    """Faded sums of one bin. Example: `Estimate(config, 2, right=3.5, answers=28.0)`."""

    config: Digest
    bin: int
    right: float
    answers: float


class Estimates:
    """Example: `estimates = Estimates(); estimates.learn(own_groups); estimates.rate(task)`."""

    def __init__(self, known: Iterable[Estimate] = ()) -> None:
        self._bins = {(one.config, one.bin): one for one in known}

    def state(self) -> tuple[Estimate, ...]:
        """All bins, in a fixed order."""
        return tuple(self._bins[key] for key in sorted(self._bins))

    def learn(self, own: Iterable[Group]) -> None:
        """Take in a round's own groups."""
        new: dict[tuple[bytes, int], list[float]] = {}
        for group in own:
            new.setdefault((group.task.ref.config, bin_of(group.task)), []).extend(group.rewards)
        for key, rewards in new.items():
            old = self._bins.get(key, Estimate(*key, 0.0, 0.0))
            self._bins[key] = Estimate(*key, FADE * old.right + sum(rewards), FADE * old.answers + len(rewards))

    def rate(self, task: Task) -> float:
        """My chance of a right answer to this question."""
        of_family = [one for (config, _), one in self._bins.items() if config == task.ref.config]
        answers = sum(one.answers for one in of_family)
        if not answers:
            return 0.0
        prior = sum(one.right for one in of_family) / answers
        here = self._bins.get((task.ref.config, bin_of(task)))
        right, count = (here.right, here.answers) if here else (0.0, 0.0)
        return (right + _LEANS * prior) / (count + _LEANS)


def bin_of(task: Task) -> int:
    """How long the truth is, in powers of two of its characters."""
    return len(task.truth).bit_length()
