"""Group-relative advantage: reward minus the mean of the group (Shao et al. 2024, arXiv 2402.03300).

Left out: division by the group's standard deviation, which weighs groups where nearly all or nearly none are
right the most (Liu et al. 2025, arXiv 2503.20783). The length and the difficulty of a question are not
corrected for either.
"""

from collections.abc import Sequence


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """Advantage of each completion of one group; None where it could not be graded.

    Ungraded completions count neither for themselves nor for the mean. Without a signal (fewer than two
    graded, or all alike) every advantage is exactly zero.
    Example: `advantages([1.0, 0.0, None])` is `[0.5, -0.5, None]`.
    """
    graded = [reward for reward in rewards if reward is not None]
    if len(graded) < 2 or max(graded) - min(graded) <= 1e-6:
        return [None if reward is None else 0.0 for reward in rewards]
    mean = sum(graded) / len(graded)
    return [None if reward is None else reward - mean for reward in rewards]
