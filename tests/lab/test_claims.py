"""Claims of a recipe: what cells must say for each to hold, to fail, or to stay open."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.lab.recipes import mini
from waggle.lab.cell import COLUMNS
from waggle.lab.claims import decided, difference, verdicts
from waggle.lab.experiment import cell_file, cells, mark_of
from waggle.lab.outcome import counted, main_families, read_curves
from waggle.lab.recipe import Claim, Recipe, read_recipe
from waggle.lab.report import write_report
from waggle.lab.stats import Mean, mean_of

CLAIMS = """
[[claim]]
says = "sharing does no harm"
arm = "both"
against = "solo"
least = -0.05
mean = -0.02

[[claim]]
says = "the mark stays rare"
arm = "choosy"
figure = "marked"
most = 0.01

[[claim]]
says = "the second node learns faster"
arm = "both"
against = "solo"
figure = "area"
least = 0.1
nodes = [2]
"""

Height = Callable[[str, int, int], float]
"""(arm, seed, node) -> held-out rate in the end."""


def written(folder: Path, height: Height, marked: float = 0.0) -> Recipe:
    """The mini recipe with claims, and cells of two rounds that rise from 0 to `height`."""
    file = mini(folder)
    file.write_text(file.read_text() + CLAIMS)
    recipe = read_recipe(file)
    (folder / "cells").mkdir()
    for cell in cells(recipe):
        rows = [",".join([*COLUMNS, "worked", "chain_sum"])]
        for number in (0, 1):
            for node in (1, 2):
                values = dict.fromkeys(COLUMNS, "1") | {"round": str(number), "node": str(node)}
                values |= {"gflops": str(number), "generated": str(number), "marked": str(number * marked)}
                rate = f"{number * height(cell.arm.name, cell.seed, node):.4f}"
                rows.append(",".join([*(values[name] for name in COLUMNS), rate, "0"]))
        cell_file(folder, cell).write_text("\n".join([mark_of(recipe, cell.arm), *rows, ""]))
    return recipe


def said(recipe: Recipe, folder: Path) -> list[str]:
    curves = read_curves(recipe, folder, cells(recipe))
    return verdicts(recipe, folder, cells(recipe), main_families(recipe, curves))


def test_a_claim_is_decided_by_its_arm_its_figure_and_its_nodes(tmp_path: Path) -> None:
    def height(arm: str, seed: int, node: int) -> float:
        return 0.5 + 0.4 * (arm == "both" and node == 2)

    harm, mark, faster = said(written(tmp_path, height), tmp_path)
    assert harm.startswith(
        "HOLDS: sharing does no harm (level of both less that of solo: 0.200 [0.200, 0.200], 2 seeds"
    )
    assert harm.endswith("claimed: at least -0.05, the mean at least -0.02)")
    assert mark == "HOLDS: the mark stays rare (marked of choosy: 0.000 [0.000, 0.000], 2 seeds; claimed: at most 0.01)"
    assert faster.startswith("HOLDS: the second node learns faster (area of both less that of solo: 0.200")


def test_what_cells_speak_against_fails_and_what_they_leave_open_is_undecided(tmp_path: Path) -> None:
    def height(arm: str, seed: int, node: int) -> float:
        return 0.5 - 0.4 * (arm == "both" and seed == 1)

    harm, mark, faster = said(written(tmp_path, height, marked=0.5), tmp_path)
    assert harm.startswith("UNDECIDED")
    assert mark.startswith("FAILS: the mark stays rare (marked of choosy: 0.500")
    assert faster.startswith("UNDECIDED")


def test_without_cells_nothing_is_decided_and_the_report_says_so(tmp_path: Path) -> None:
    recipe = written(tmp_path, lambda arm, seed, node: 0.5)
    for seed in (0, 1):
        (tmp_path / "cells" / f"solo-{seed}.csv").unlink()
    sentences = said(recipe, tmp_path)
    assert sentences[0] == "UNDECIDED: sharing does no harm (cells are missing)"
    report = write_report(recipe, read_curves(recipe, tmp_path, cells(recipe)), tmp_path, "command", sentences)
    assert "- UNDECIDED: sharing does no harm (cells are missing)" in report
    assert "- HOLDS: the mark stays rare" in report


def test_the_mark_and_the_number_of_nodes_have_plots_of_their_own(tmp_path: Path) -> None:
    recipe = written(tmp_path, lambda arm, seed, node: 0.5, marked=0.5)
    more = recipe.model_copy(update={"arm": (recipe.arm[0].model_copy(update={"nodes": 1}), *recipe.arm[1:])})
    curves = read_curves(recipe, tmp_path, cells(recipe))
    for one, plots in ((recipe, {"mark.png"}), (more, {"mark.png", "nodes.png"})):
        report = write_report(one, curves, tmp_path, "command", [])
        assert {name for name in ("mark.png", "nodes.png") if f"({name})" in report} == plots
        assert all((tmp_path / name).stat().st_size for name in plots)


def test_a_family_that_the_reference_nearly_masters_is_not_counted(tmp_path: Path) -> None:
    recipe = written(tmp_path, lambda arm, seed, node: 0.8)
    curves = read_curves(recipe, tmp_path, cells(recipe))
    assert counted(recipe, curves)["working"] == []
    assert counted(recipe.model_copy(update={"easy": 0.9}), curves)["working"] == ["worked"]


@pytest.mark.parametrize(
    ("bounds", "found", "verdict"),
    [
        ({"least": 0.0}, (0.1, 0.05, 0.15), "holds"),
        ({"least": 0.0}, (0.1, -0.05, 0.25), "undecided"),
        ({"least": 0.0}, (-0.1, -0.15, -0.05), "fails"),
        ({"most": 0.01}, (0.0, 0.0, 0.0), "holds"),
        ({"most": 0.01}, (0.02, 0.0, 0.04), "undecided"),
        ({"most": 0.01}, (0.3, 0.2, 0.4), "fails"),
        ({"least": -0.05, "mean": -0.02}, (-0.01, -0.04, 0.02), "holds"),
        ({"least": -0.05, "mean": -0.02}, (-0.03, -0.04, -0.02), "undecided"),
        ({"most": 0.05, "mean": 0.02}, (0.03, 0.02, 0.04), "undecided"),
    ],
)
def test_the_whole_interval_is_on_one_side(
    bounds: dict[str, float], found: tuple[float, float, float], verdict: str
) -> None:
    assert decided(Claim(says="so", arm="a", **bounds), Mean(*found, 5)) == verdict  # type: ignore[arg-type]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=1), st.floats(-0.9, 0.9))
def test_one_seed_decides_nothing(values: list[float], least: float) -> None:
    assert decided(Claim(says="so", arm="a", least=least), mean_of(values)) == "undecided"


def test_seeds_that_one_of_two_arms_lacks_are_left_out(tmp_path: Path) -> None:
    recipe = written(tmp_path, lambda arm, seed, node: 0.5)
    curves = read_curves(recipe, tmp_path, cells(recipe))
    claim = Claim(says="so", arm="choosy", against="truth", least=0)
    found = difference(claim, curves, ["worked"])
    assert found is not None
    assert found.seeds == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "needs one of least and most"),
        ({"least": 0.0, "most": 1.0}, "needs one of least and most"),
        ({"least": 0.0, "mean": -0.1}, "has no effect"),
        ({"most": 0.1, "mean": 0.2}, "has no effect"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(values: dict[str, float], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Claim(says="so", arm="a", **values)  # type: ignore[arg-type]
