"""Group-relative advantage: reward minus the mean of the group (Shao et al. 2024, arXiv 2402.03300).

A foreign group can be measured against another baseline than its own mean, which speaks of its author's skill and not
of mine: against my own rate a strong peer's right answers teach a weak me much, and a weak peer's failures teach a
strong me little (HACPO, arXiv 2603.02604, weighs by the ratio of both instead). Of a large group a few answers can
stand for all: those whose rewards differ most (PODS, arXiv 2504.13818).

Left out: division by the group's standard deviation, which weighs groups where nearly all or nearly none are
right the most (Liu et al. 2025, arXiv 2503.20783). The length and the difficulty of a question are not
corrected for either.
"""

from collections.abc import Sequence


def advantages(rewards: Sequence[float | None], baseline: float | None = None) -> list[float | None]:
    """Advantage of each completion of one group over the group's mean, or over a baseline; None where not graded.

    Ungraded completions count neither for themselves nor for the mean. Without a signal (fewer than two
    graded, or all alike) every advantage is exactly zero.
    Example: `advantages([1.0, 0.0, None])` is `[0.5, -0.5, None]`.
    """
    graded = [reward for reward in rewards if reward is not None]
    if len(graded) < 2 or max(graded) - min(graded) <= 1e-6:
        return [None if reward is None else 0.0 for reward in rewards]
    mean = sum(graded) / len(graded) if baseline is None else baseline
    return [None if reward is None else reward - mean for reward in rewards]


def most_different(rewards: Sequence[float], num: int) -> list[int]:
    """The places, ascending, of the `num` rewards with the largest variance: some of the lowest, some of the highest.

    Example: `most_different([0, 1, 0, 0, 1, 1], 2)` is `[0, 1]`.
    """
    if len(rewards) <= num:
        return list(range(len(rewards)))
    order = sorted(range(len(rewards)), key=lambda place: rewards[place])  # stable: the first of equals
    highest = sorted(range(len(rewards)), key=lambda place: -rewards[place])
    found = [order[:low] + highest[: num - low] for low in range(num + 1)]
    return sorted(max(found, key=lambda places: _variance([rewards[place] for place in places])))


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
