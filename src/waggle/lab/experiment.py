"""An experiment: every arm with every seed, as many cells at a time as there are cores, and what is finished is kept.

A cell is one CSV that appears whole. Started again, an experiment plays what is missing and nothing else; a cell of
another recipe is refused rather than mixed in. The report is made from the CSVs alone, so equal cells give equal bytes.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from waggle.core.clock import SystemClock
from waggle.core.codec import digest_bytes
from waggle.core.errors import ConfigError, RunError
from waggle.core.files import disk_errors, write_atomic
from waggle.core.process import end_with_parent
from waggle.lab.recipe import Arm, Recipe

CELLS = "cells"
_MARK = "# waggle cell "
_TOLD_ONLY = {"arm", "seeds", "title", "reference", "goal", "factor", "alone", "claim", "easy"}
"""What of a recipe no cell follows from."""


class Cell(NamedTuple):
    """One arm with one seed."""

    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.arm.name}-{self.seed}"


class Progress(NamedTuple):
    """A cell that was finished, how many are left, and the seconds that will take, about."""

    name: str
    seconds: float
    left: int
    left_s: float


def cells(recipe: Recipe, arms: Sequence[str] = ()) -> list[Cell]:
    """The cells in the order in which they are played: all arms of a seed before the next seed.

    Raises:
        ConfigError: no such arm.
    """
    known = {arm.name: arm for arm in recipe.arm}
    for name in arms:
        if name not in known:
            raise ConfigError(f"{recipe.name} has no arm {name!r}; its arms are {', '.join(known)}")
    chosen = [arm for arm in recipe.arm if not arms or arm.name in arms]
    seeds = sorted({seed for arm in chosen for seed in (arm.seeds or recipe.seeds)})
    return [Cell(arm, seed) for seed in seeds for arm in chosen if seed in (arm.seeds or recipe.seeds)]


def cell_file(folder: Path, cell: Cell) -> Path:
    """Where a cell is kept."""
    return folder / CELLS / f"{cell.name}.csv"


def mark_of(recipe: Recipe, arm: Arm) -> str:
    """The first line of a cell's file: a digest of all that it follows from, but for the seed."""
    base = recipe.model_dump(mode="json", exclude=_TOLD_ONLY, exclude_defaults=True)
    own = arm.model_dump(mode="json", exclude={"title", "seeds"}, exclude_defaults=True)
    outside = recipe.own(arm)
    told = json.dumps([base, own, outside] if outside else [base, own], sort_keys=True)
    return _MARK + digest_bytes("Cell", told.encode()).hex()[:16]


def missing(recipe: Recipe, folder: Path, wanted: Sequence[Cell]) -> list[Cell]:
    """The cells that are still to be played.

    Raises:
        RunError: a file holds a cell of another recipe.
    """
    left = []
    for cell in wanted:
        file = cell_file(folder, cell)
        if not file.exists():
            left.append(cell)
        elif not file.read_text("utf-8").startswith(mark_of(recipe, cell.arm) + "\n"):
            raise RunError(f"{file} was made by another recipe; remove it, or name another folder with --out")
    return left


def play_missing(recipe: Recipe, folder: Path, left: Sequence[Cell], workers: int) -> Iterator[Progress]:
    """Play cells, `workers` at a time, and tell of each that is finished.

    Raises:
        RunError: the disk refuses; what is finished stays.
    """
    with disk_errors(folder):
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
    recipe.build()  # before several would at the same time
    clock, waiting, took = SystemClock(), list(left), list[float]()
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=end_with_parent) as pool:
        running: dict[Future[tuple[str, float]], Cell] = {}
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    cell = waiting.pop(0)
                    running[pool.submit(_run, recipe, cell, clock.passed_s())] = cell
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    cell = running.pop(future)
                    text, started_s = future.result()
                    write_atomic(cell_file(folder, cell), f"{mark_of(recipe, cell.arm)}\n{text}".encode())
                    took.append(clock.passed_s() - started_s)
                    num = len(waiting) + len(running)
                    yield Progress(cell.name, took[-1], num, num * sum(took) / len(took) / workers)
        except BrokenProcessPool as error:
            raise RunError(
                f"a process that played {' or '.join(cell.name for cell in running.values())} was ended from outside, "
                "for lack of memory perhaps; start again with fewer --workers, what is finished is kept"
            ) from error
        finally:
            for process in list((pool._processes or {}).values()):
                process.kill()  # the rest is of no use to anybody, and a shutdown would wait for it


def _run(recipe: Recipe, cell: Cell, started_s: float) -> tuple[str, float]:
    from waggle.lab.cell import run_cell

    return run_cell(recipe, cell.arm, cell.seed), started_s
