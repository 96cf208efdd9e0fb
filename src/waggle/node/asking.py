"""`waggle eval`: what a model or a run can do on held-out questions, before and after.

A model is asked the report questions of a charter: that of the run it came from, or one founded on the
configuration. A run folder's figures are those of each node's exported model beside the baseline that was
measured before its first round.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from waggle.core.codec import encode
from waggle.core.config import Config
from waggle.core.errors import ModelError
from waggle.core.events import json_line
from waggle.core.files import write_atomic
from waggle.core.types import Charter
from waggle.node import build
from waggle.node.evaluate import Score, evaluate
from waggle.node.runfolder import RunFolder, node_folders, read_noun
from waggle.node.view import score_table, shown
from waggle.policy.load import load
from waggle.policy.sampler import generate
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset


def evaluate_command(console: Console, model: str, config: Config, json_file: Path | None) -> None:
    """Ask, print, and write the figures where wanted.

    Raises:
        WaggleError: a model, run or setting that cannot be used.
    """
    scores = _of_run(console, Path(model)) if (Path(model) / "run.json").exists() else _of_model(console, model, config)
    if json_file:
        write_atomic(json_file, json_line({name: figures(score) for name, score in scores.items()}).encode())


def _of_model(console: Console, model: str, config: Config) -> dict[str, Score]:
    key = build.local_key(config.run.seed, 0)
    with tempfile.TemporaryDirectory() as folder:
        charter = build.found_charter(config, key, "evaluation", Path(folder))
        score = ask_model(model, charter, config, Path(folder))
    table = Table(title=f"{model}: own answers to held-out questions (pass@1, 95 % interval)")
    for title in ("family", "questions", "right"):
        table.add_column(title, justify="left" if title == "family" else "right")
    for family in (*score.families, score.over()):
        table.add_row(family.family, str(family.asked), shown(family))
    console.print(table)
    return {"model": score}


def _of_run(console: Console, path: Path) -> dict[str, Score]:
    folders = [RunFolder(folder) for folder in node_folders(path)]
    config, charter = folders[0].config(), folders[0].charter()
    trained = [folder for folder in folders if folder.model.exists()]
    if not trained:
        raise ModelError(f"no node of {path} has exported a model yet; let it play until its first evaluation")
    file = path / "before.bin"
    if not file.exists():
        write_atomic(file, encode(ask_model(config.model.name, charter, config, path / build.FILES)))
    before = read_noun(Score, file)
    rows: list[tuple[str, Score]] = []
    for folder in trained:
        score = ask_model(str(folder.model), charter, config, path / build.FILES)
        rows.append((folder.path.name, score))
    console.print(score_table(before, rows, build.labels(charter)))
    return {"before": before, **dict(rows)}


def ask_model(model: str, charter: Charter, config: Config, files: Path) -> Score:
    """A model's own answers to the report questions of a charter."""
    build.set_threads(config)
    policy = load(model, device=config.model.device, precision=config.model.precision, seed=config.run.seed)
    taskset = Taskset(charter, files)
    count, families = config.eval.report, config.tasks.families
    tasks, times = taskset.heldout("report", count, families), taskset.frequencies("report", count, families)
    names = {digest: family.label for digest, family in taskset.families.items()}
    with Graders(charter.families, functions=bool(config.tasks.file)) as graders:
        return evaluate(partial(generate, policy), graders, tasks, names, 0, config.eval.temperature, times)


def figures(score: Score) -> dict[str, Sequence[object]]:
    """Right answers, questions, rate and interval of each family, for JSON."""
    families = (*score.families, score.over())
    return {f.family: [f.correct, f.asked, f.rate, *f.interval] for f in families}
