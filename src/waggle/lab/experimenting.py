"""The command around an experiment: what is missing, what it will take, what came of it."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from waggle.core.files import disk_errors, write_atomic
from waggle.lab.claims import verdicts
from waggle.lab.experiment import Cell, Progress, cells, missing, play_missing
from waggle.lab.outcome import Curve, main_families, power, read_curves
from waggle.lab.recipe import Recipe, read_recipe
from waggle.lab.report import write_report
from waggle.node.build import cores


def experiment_command(
    console: Console, file: Path, out: Path | None, arms: Sequence[str], workers: int, dry_run: bool
) -> None:
    """Play what is missing and write the report.

    Raises:
        WaggleError: the recipe cannot be used, or the disk refuses.
    """
    recipe = read_recipe(file)
    wanted = cells(recipe, arms)
    folder = out or Path("results") / recipe.name
    left = missing(recipe, folder, wanted)
    console.print(f"{recipe.title}: {len(wanted)} cells, {len(left)} to play, in {folder}")
    if recipe.goal:
        console.print(_power(recipe, read_curves(recipe, folder, wanted)))
    if dry_run:
        for arm in recipe.arm:
            console.print(f"{arm.name}: {arm.kind}, {', '.join((*recipe.set, *arm.set)) or 'defaults'}")
        return
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "recipe.toml", file.read_bytes())
    for done in play_missing(recipe, folder, left, workers or cores()):
        console.print(_progress(done))
    _report(console, recipe, folder, wanted, f"waggle experiment {file}")


def _power(recipe: Recipe, curves: Sequence[Curve]) -> str:
    """What the experiment can find at all, as far as that can be told."""
    found = power(recipe, curves)
    if found == math.inf:
        return f"power: told once two seeds of {recipe.goal} and {recipe.reference} are finished"
    return (
        f"power: by the seeds so far, {len(recipe.seeds)} seeds show a true difference in area between {recipe.goal} "
        f"and {recipe.reference} of {found:.3f} in four of five experiments"
    )


def _progress(done: Progress) -> str:
    rest = f"{done.left} to go, about {done.left_s / 60:.0f} min" if done.left else "the last one"
    return f"{done.name} took {done.seconds:.0f} s; {rest}"


def _report(console: Console, recipe: Recipe, folder: Path, wanted: Sequence[Cell], command: str) -> None:
    curves = read_curves(recipe, folder, wanted)
    decided = verdicts(recipe, folder, wanted, main_families(recipe, curves))
    write_report(recipe, curves, folder, command, decided)
    for sentence in decided:
        console.print(sentence)
    console.print(f"report: {folder / 'report.md'}")
