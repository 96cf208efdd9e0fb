"""The report of an experiment: one page of Markdown, a summary as CSV, four plots. From the cells alone.

Equal cells give equal bytes, the plots but for the version of matplotlib; times are not among them.
"""

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from waggle import __version__
from waggle.core.files import disk_errors, write_atomic
from waggle.lab.outcome import BUDGETS, UNITS, Curve, Line, budget_of, counted, lines, main_families, tokens_to
from waggle.lab.recipe import Recipe
from waggle.lab.stats import Mean, at, mean_of

LINES = ("-", "--", ":")
_STEPS = 60
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000", "#994455", "#0077bb")


def write_report(recipe: Recipe, curves: Sequence[Curve], folder: Path, command: str, decided: Sequence[str]) -> str:
    """Write the report of what is finished; `decided` says what came of the recipe's claims. Returns its text.

    Raises:
        RunError: the disk refuses.
    """
    kinds = counted(recipe, curves)
    text = "\n".join(_page(recipe, curves, kinds, command, decided))
    write_atomic(folder / "summary.csv", _summary(recipe, curves, kinds).encode())
    _plots(recipe, curves, kinds, folder)
    write_atomic(folder / "report.md", text.encode())
    return text


def _page(
    recipe: Recipe, curves: Sequence[Curve], kinds: dict[str, list[str]], command: str, decided: Sequence[str]
) -> list[str]:
    seeds = sorted({curve.seed for curve in curves})
    page = [f"# {recipe.title}", "", *_setting(recipe, curves, seeds, command)]
    for kind, families in kinds.items():
        if families:
            page += ["", f"## Families with {kind}" if kind == "working" else "## Short answers", ""]
            page += [f"{', '.join(families)}; means over them.", ""]
            for column in BUDGETS:
                page += _table(recipe, curves, families, column)
            page += ["", f"![held-out pass@1]({kind}.png)"]
    page += ["", "## Verdict", "", *_verdict(recipe, curves, kinds["working"]), *(f"- {one}" for one in decided)]
    if len({arm.nodes for arm in recipe.arm}) > 1:
        page += ["", "![area against nodes](nodes.png)"]
    page += ["", "## Cost of an arm", "", *_costs(recipe, curves)]
    page += ["", "## The paper's metric beside own answers", "", *_metric(recipe, curves, kinds)]
    return [*page, ""]


def _setting(recipe: Recipe, curves: Sequence[Curve], seeds: Sequence[int], command: str) -> list[str]:
    used = {name for names in counted(recipe, curves).values() for name in names}
    left = [family.label for family in recipe.families() if family.label not in used]
    small = recipe.small
    return [
        f"`{command}`, waggle {__version__}, seeds {', '.join(map(str, seeds))}.",
        "",
        f"A scale model: {recipe.nodes} nodes of {small.layers} layers, {small.hidden} wide, that were warmed up to "
        f"give the right answer seldom ({small.right:.0%} of what they saw last). Each plays {recipe.rounds} rounds "
        f"and {recipe.gflops:.0f} GFLOP at the least. All figures are own answers (one each, temperature 1) to "
        "held-out questions, a mean over nodes; intervals are 95 % over seeds.",
        "",
        f"Area: mean height of the curve above its start up to the budget. Against: its difference from "
        f"`{recipe.reference}`, seed by seed. Found: the smallest true difference that four of five experiments like "
        "this one would show. Swing: standard deviation of the later half of the curve about its trend.",
        *(
            ["", f"Not counted, since `{recipe.reference}` ends above {recipe.easy:g} there: {', '.join(left)}."]
            if left
            else []
        ),
    ]


def _table(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str], column: str) -> list[str]:
    found = lines(recipe, curves, families, column)
    if not found:
        return []
    budget = budget_of(curves, column)
    head = f"At {BUDGETS[column]} ({budget:.0f} {UNITS[column]} a node):"
    rows = [
        "",
        head,
        "",
        f"| arm | seeds | area | against {recipe.reference} | ratio | found | level at the end | swing |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        against = str(one.against) if one.against else "-"
        ratio = "-" if math.isnan(one.ratio) else f"{one.ratio:.2f}"
        power = f"{one.found:.3f}" if 0 < one.found < math.inf else "-"
        figures = (one.area.seeds, one.area, against, ratio, power, one.end, f"{one.swing.mean:.3f}")
        rows.append(f"| {one.arm} | {' | '.join(map(str, figures))} |")
    return rows


def _verdict(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str]) -> list[str]:
    if not recipe.goal or not families:
        return [] if recipe.claim else ["This recipe states no goal."]
    found = {line.arm: line for line in lines(recipe, curves, families, "gflops")}
    goal, reference = found.get(recipe.goal), found.get(recipe.reference)
    if not goal or not reference or goal.area.seeds < 2:
        return ["Too few cells are finished to say."]
    assert goal.against is not None
    wanted = f" (goal: {recipe.factor:g})" if recipe.factor else ""
    says = [
        f"- {recipe.goal}'s area is {goal.ratio:.2f} times {recipe.reference}'s at equal operations{wanted}; the "
        f"difference is {goal.against}, so the intervals are {'apart' if goal.against.low > 0 else 'not apart'}."
    ]
    for name in recipe.alone:
        if name in found:
            says.append(f"- {_beside(recipe, curves, families, goal, found[name])}")
    shares = tokens_to(recipe, curves, families, recipe.goal, recipe.alone[0]) if recipe.alone else []
    if shares:
        reached = [share for share in shares if share < math.inf]
        how = f"{fmean(reached):.2f} of its generated tokens" if reached else "never"
        says.append(
            f"- The last level of {recipe.alone[0]} is reached with {how} in {len(reached)} of {len(shares)} seeds"
            f"{' (goal: 0.5)' if recipe.factor else ''}."
        )
    return says


def _beside(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str], goal: Line, other: Line) -> str:
    against = lines(recipe.model_copy(update={"reference": other.arm}), curves, families, "gflops")
    difference = next(line.against for line in against if line.arm == goal.arm)
    verdict = (
        "above" if difference and difference.low > 0 else "below" if difference and difference.high < 0 else "near"
    )
    return f"{goal.arm} is {verdict} {other.arm}: a difference in area of {difference}."


def _costs(recipe: Recipe, curves: Sequence[Curve]) -> list[str]:
    rows = [
        "| arm | generated tokens | trained tokens | GFLOP | kB sent | kB received | own groups | foreign groups | "
        "right groups that say more than the truth | own answers with the mark | characters of an own answer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in recipe.arm:
        own = [curve for curve in curves if curve.arm == arm.name]
        if own:
            last = {name: fmean(c.points[name][-1] for c in own) for name in ("generated", "trained", "gflops")}
            last |= {name: fmean(c.points[name][-1] for c in own) for name in ("sent_kb", "received_kb")}
            groups = {n: fmean(sum(c.points[n]) for c in own) for n in ("own_groups", "foreign_groups")}
            beyond = fmean(fmean(c.points["beyond_truth"][1:]) for c in own)
            cells = [f"{value:.0f}" for value in (*last.values(), *groups.values())]
            marked, chars = (fmean(c.points[name][-1] for c in own) for name in ("marked", "chars"))
            rows.append(f"| {arm.name} | {' | '.join(cells)} | {beyond:.2f} | {marked:.4f} | {chars:.0f} |")
    note = (
        "A node, to the end of the cell; answers: those of the last rounds. Operations: 2 a parameter and token forward"
    )
    return [*rows, "", f"{note}, 4 backward. The mark: {recipe.mark!r}."]


def _metric(recipe: Recipe, curves: Sequence[Curve], kinds: dict[str, list[str]]) -> list[str]:
    families = [name for names in kinds.values() for name in names]
    rows = [
        "| arm | mean reward of what was trained on | own reward while training | held-out pass@1 |",
        "|---|---|---|---|",
    ]
    for arm in recipe.arm:
        own = [curve for curve in curves if curve.arm == arm.name]
        if own:
            trained, mine = (mean_of([c.points[n][-1] for c in own]) for n in ("train_reward", "own_reward"))
            rows.append(f"| {arm.name} | {trained.mean:.3f} | {mine.mean:.3f} | {_end(own, families):.3f} |")
    note = (
        "Last evaluation. The published figures of swarm sampling are means over all groups that were trained on, "
        "foreign ones included: the first column, which rises with the filter of foreign groups whether or not anybody "
        "learns."
    )
    page = [*rows, "", note, "", "![the paper's metric](metric.png)"]
    return page + (["", "## Own answers that hold the mark", "", "![the mark](mark.png)"] if _has_mark(curves) else [])


def _has_mark(curves: Sequence[Curve]) -> bool:
    return any(any(curve.points["marked"]) for curve in curves)


def _end(curves: Sequence[Curve], families: Sequence[str]) -> float:
    return fmean(curve.height(families)[-1] for curve in curves) if families else 0.0


def _summary(recipe: Recipe, curves: Sequence[Curve], kinds: dict[str, list[str]]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["kind", "budget", "arm", "seeds", "area", "low", "high", "ratio", "end", "swing"])
    for kind, families in kinds.items():
        for column in BUDGETS if families else ():
            for one in lines(recipe, curves, families, column):
                figures = (one.area.mean, one.area.low, one.area.high, one.ratio, one.end.mean, one.swing.mean)
                table.writerow([kind, column, one.arm, one.area.seeds, *(f"{value:.4f}" for value in figures)])
    return out.getvalue()


def _plots(recipe: Recipe, curves: Sequence[Curve], kinds: dict[str, list[str]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    for kind, families in kinds.items():
        if families:

            def held_out(curve: Curve, families: Sequence[str] = families) -> list[float]:
                return curve.height(families)

            _plot(recipe, curves, held_out, "held-out pass@1", folder / f"{kind}.png")
    shown = [("train_reward", "mean reward of what was trained on", "metric")]
    shown += [("marked", "share of own answers that hold the mark", "mark")] if _has_mark(curves) else []
    for name, label, file in shown:

        def values(curve: Curve, name: str = name) -> list[float]:
            return curve.points[name]

        _plot(recipe, curves, values, label, folder / f"{file}.png")
    if len({arm.nodes for arm in recipe.arm}) > 1:
        _plot_nodes(recipe, curves, main_families(recipe, curves), folder / "nodes.png")


def _plot_nodes(recipe: Recipe, curves: Sequence[Curve], families: Sequence[str], file: Path) -> None:
    """Area at equal operations against the number of nodes."""
    from matplotlib import pyplot

    nodes = {arm.name: arm.nodes or recipe.nodes for arm in recipe.arm}
    found = sorted((nodes[line.arm], line.area) for line in lines(recipe, curves, families, "gflops"))
    figure, panel = pyplot.subplots(figsize=(6.5, 4.5), layout="constrained")
    means = [area.mean for _, area in found]
    errors = [[0.0 if area.seeds < 2 else end(area) for _, area in found] for end in (_below, _above)]
    panel.errorbar([num for num, _ in found], means, errors, fmt="o", capsize=4)
    panel.set_xscale("log", base=2)
    panel.set_xlabel("nodes")
    panel.set_ylabel("area")
    panel.grid(alpha=0.2)
    with disk_errors(file):
        figure.savefig(file, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _below(mean: Mean) -> float:
    return mean.mean - mean.low


def _above(mean: Mean) -> float:
    return mean.high - mean.mean


def _plot(
    recipe: Recipe, curves: Sequence[Curve], height: Callable[[Curve], list[float]], label: str, file: Path
) -> None:
    """Against operations and against rounds, a line an arm, with the band of its seeds."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(13, 4.5), sharey=True, layout="constrained")
    for panel, (column, name) in zip(panels, (("gflops", "GFLOP a node"), ("round", "rounds")), strict=True):
        for number, arm in enumerate(recipe.arm):
            own = [curve for curve in curves if curve.arm == arm.name]
            if own:
                _draw(panel, own, height, column, arm.name, number)
        panel.set_xlabel(name)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel(label)
    panels[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    with disk_errors(file):
        figure.savefig(file, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _draw(
    panel: Any, curves: Sequence[Curve], height: Callable[[Curve], list[float]], column: str, name: str, number: int
) -> None:
    """The mean over seeds, as far as all of them reach; their points may lie at other places."""
    end = min(curve.points[column][-1] for curve in curves)
    places = [end * step / _STEPS for step in range(_STEPS + 1)]
    heights = [mean_of([at(c.points[column], height(c), place) for c in curves]) for place in places]
    color, dashes = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
    panel.plot(places, [one.mean for one in heights], color=color, label=name, linewidth=1.6, linestyle=dashes)
    if len(curves) > 1:
        panel.fill_between(places, [o.low for o in heights], [o.high for o in heights], color=color, alpha=0.12, lw=0)
