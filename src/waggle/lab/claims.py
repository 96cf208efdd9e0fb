"""What a recipe claims, decided from the cells: holds, fails, or undecided, with the figure that says so.

A claim holds where the whole 95 % interval over seeds is on its side, and fails where none of it is. A single seed
decides nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from waggle.lab.experiment import Cell
from waggle.lab.outcome import Curve, budget_of, read_curves
from waggle.lab.recipe import Claim, Recipe
from waggle.lab.stats import Mean, area, at, mean_of, swing


def verdicts(recipe: Recipe, folder: Path, wanted: Sequence[Cell], families: Sequence[str]) -> list[str]:
    """A sentence for every claim of the recipe."""
    return [_sentence(recipe, claim, folder, wanted, families) for claim in recipe.claim]


def _sentence(recipe: Recipe, claim: Claim, folder: Path, wanted: Sequence[Cell], families: Sequence[str]) -> str:
    found = difference(claim, read_curves(recipe, folder, wanted, claim.nodes), families)
    what = f"{claim.figure} of {claim.arm}" + (f" less that of {claim.against}" if claim.against else "")
    sign, bound = claim.side
    side = "at least" if sign > 0 else "at most"
    claimed = f"{side} {bound:g}" + (f", the mean {side} {claim.mean:g}" if claim.mean is not None else "")
    if found is None:
        return f"UNDECIDED: {claim.says} (cells are missing)"
    seeds = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    return f"{decided(claim, found).upper()}: {claim.says} ({what}: {found}, {seeds}; claimed: {claimed})"


def decided(claim: Claim, found: Mean) -> str:
    """`holds`, `fails` or `undecided`."""
    sign, bound = claim.side
    low, high = sorted((sign * found.low, sign * found.high))
    if low >= sign * bound and (claim.mean is None or sign * found.mean >= sign * claim.mean):
        return "holds"
    return "fails" if high < sign * bound else "undecided"


def difference(claim: Claim, curves: Sequence[Curve], families: Sequence[str]) -> Mean | None:
    """The claim's figure over the seeds that both arms have; None where there is no such seed.

    Areas and levels are those at the most operations that both arms reached in all seeds.
    """
    both = [curve for curve in curves if curve.arm in (claim.arm, claim.against)]
    budget = budget_of(both, "gflops")
    figures = {(curve.arm, curve.seed): _figure(claim, curve, families, budget) for curve in both}
    seeds = [seed for arm, seed in figures if arm == claim.arm and (claim.against or arm, seed) in figures]
    if not seeds:
        return None
    base = {seed: figures[claim.against, seed] if claim.against else 0.0 for seed in seeds}
    return mean_of([figures[claim.arm, seed] - base[seed] for seed in seeds])


def _figure(claim: Claim, curve: Curve, families: Sequence[str], budget: float) -> float:
    if claim.figure == "swing":
        return swing(curve.height(families))
    if claim.figure in ("marked", "own_reward", "chars"):
        return curve.points[claim.figure][-1]
    x, y = curve.points["gflops"], curve.height(families)
    return area(x, y, budget) if claim.figure == "area" else at(x, y, budget)
