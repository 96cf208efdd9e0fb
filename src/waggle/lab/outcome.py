"""What the cells of an experiment say: curves by arm and seed, and every arm beside a reference one.

Three budgets are compared: equal floating-point operations, equal rounds, equal generated tokens. Each is as large as
the smallest that any compared arm reached, so that no curve is continued by guessing. (An arm that generates nothing is
left out of the last.) A family where the reference ends above the recipe's `easy` says nothing about who learns better
and is not counted.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from waggle.lab.experiment import Cell, cell_file
from waggle.lab.recipe import Recipe
from waggle.lab.stats import Mean, area, at, mean_of, reached, smallest_found, swing

UNITS = {"gflops": "GFLOP", "round": "rounds", "generated": "tokens"}
BUDGETS = {"gflops": "equal operations", "round": "equal rounds", "generated": "equal generated tokens"}


class Curve(NamedTuple):
    """One cell, averaged over its nodes: values by column, a point an evaluation."""

    arm: str
    seed: int
    points: dict[str, list[float]]

    def height(self, families: Sequence[str]) -> list[float]:
        """Held-out pass@1, mean over some families."""
        return [fmean(column) for column in zip(*(self.points[family] for family in families), strict=True)]


class Line(NamedTuple):
    """An arm under one budget. `against` is its area less the reference's, seed by seed; `ratio` that of the means."""

    arm: str
    area: Mean
    against: Mean | None
    ratio: float
    found: float
    """The smallest true difference in area that four of five such experiments would show."""
    end: Mean
    swing: Mean
    worst_seed: float


def read_curves(recipe: Recipe, folder: Path, wanted: Sequence[Cell], nodes: Sequence[int] = ()) -> list[Curve]:
    """The finished cells; of some nodes alone, counted from 1, where there are any of these."""
    files = [(cell, cell_file(folder, cell)) for cell in wanted]
    curves = [Curve(cell.arm.name, cell.seed, _points(file, nodes)) for cell, file in files if file.exists()]
    return [curve for curve in curves if curve.points]


def _points(file: Path, nodes: Sequence[int]) -> dict[str, list[float]]:
    with open(file, encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(line for line in handle if not line.startswith("#")))
    rows = [row for row in rows if not nodes or int(row["node"]) in nodes]
    if not rows:
        return {}
    rounds = sorted({int(row["round"]) for row in rows})
    names = [name for name in rows[0] if name not in ("round", "node")]
    points = {
        name: [fmean(float(row[name]) for row in rows if int(row["round"]) == r) for r in rounds] for name in names
    }
    return points | {"round": [float(number) for number in rounds]}


def counted(recipe: Recipe, curves: Sequence[Curve]) -> dict[str, list[str]]:
    """Families with working and without, those left out that the reference nearly masters."""
    reference = [curve for curve in curves if curve.arm == recipe.reference]
    kinds = {
        "working": [family.label for family in recipe.families() if family.working],
        "short": [family.label for family in recipe.families() if not family.working],
    }
    return {
        kind: [name for name in names if not reference or fmean(c.points[name][-1] for c in reference) <= recipe.easy]
        for kind, names in kinds.items()
    }


def main_families(recipe: Recipe, curves: Sequence[Curve]) -> list[str]:
    """What verdicts are about: families with working; where none of them counts, all."""
    return counted(recipe, curves)["working"] or [family.label for family in recipe.families()]


def budget_of(curves: Sequence[Curve], column: str) -> float:
    """The most of a column that every arm reached in every seed; arms that have nothing of it left aside."""
    reached_by = [curve.points[column][-1] for curve in curves]
    return min((value for value in reached_by if value > 0), default=0.0)


def lines(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str], column: str) -> list[Line]:
    """Every arm under the budget of a column, the reference's among them, in the recipe's order."""
    budget = budget_of(curves, column)
    areas = {
        (c.arm, c.seed): area(c.points[column], c.height(families), budget)
        for c in curves
        if c.points[column][-1] >= budget > 0
    }
    found = []
    for arm in recipe.arm:
        of_arm = [curve for curve in curves if curve.arm == arm.name and (arm.name, curve.seed) in areas]
        if of_arm:
            found.append(_line(recipe, arm.name, of_arm, areas, families, column, budget))
    return found


def _line(
    recipe: Recipe,
    arm: str,
    curves: Sequence[Curve],
    areas: dict[tuple[str, int], float],
    families: Sequence[str],
    column: str,
    budget: float,
) -> Line:
    own = [areas[arm, curve.seed] for curve in curves]
    pairs = [
        (areas[arm, c.seed], areas[recipe.reference, c.seed]) for c in curves if (recipe.reference, c.seed) in areas
    ]
    against = [a - b for a, b in pairs]
    base = fmean(b for _, b in pairs) if pairs else 0.0
    return Line(
        arm,
        mean_of(own),
        mean_of(against) if against and arm != recipe.reference else None,
        fmean(a for a, _ in pairs) / base if base > 0 else float("nan"),
        smallest_found(against) if arm != recipe.reference else 0.0,
        mean_of([at(c.points[column], c.height(families), budget) for c in curves]),
        mean_of([swing(c.height(families)) for c in curves]),
        min(own),
    )


def power(recipe: Recipe, curves: Sequence[Curve]) -> float:
    """The smallest true difference in area, goal against reference, that the recipe's seeds would show.

    Infinite before two seeds of both are finished.
    """
    families = main_families(recipe, curves)
    both = [curve for curve in curves if curve.arm in (recipe.goal, recipe.reference)]
    budget = budget_of(both, "gflops")
    areas = {(c.arm, c.seed): area(c.points["gflops"], c.height(families), budget) for c in both}
    seeds = [seed for arm, seed in areas if arm == recipe.goal and (recipe.reference, seed) in areas]
    differences = [areas[recipe.goal, seed] - areas[recipe.reference, seed] for seed in seeds]
    return smallest_found(differences, len(recipe.seeds))


def tokens_to(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str], arm: str, level_of: str) -> list[float]:
    """Generated tokens with which an arm reaches another one's last level, as shares of what that one used, by seed."""
    ends = {c.seed: (c.height(families)[-1], c.points["generated"][-1]) for c in curves if c.arm == level_of}
    return [
        reached(c.points["generated"], c.height(families), ends[c.seed][0]) / ends[c.seed][1]
        for c in curves
        if c.arm == arm and c.seed in ends
    ]
