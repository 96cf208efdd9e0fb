"""`waggle eval`: what models or a run can do on held-out questions.

Models are asked the report questions of a charter that is founded on the configuration, all of them the same ones, and
each is compared with the first, question by question. A run folder's figures are those of each node's exported model
beside the baseline that was measured before its first round.
"""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from waggle.core.codec import encode
from waggle.core.config import Config
from waggle.core.errors import ConfigError, ModelError
from waggle.core.events import json_line
from waggle.core.files import write_atomic
from waggle.core.types import Charter, Task
from waggle.node import build, probes
from waggle.node.comparison import compare
from waggle.node.evaluate import FamilyScore, Outcome, Score, ask, scores
from waggle.node.runfolder import RunFolder, node_folders, read_noun
from waggle.node.state import Snapshot
from waggle.node.view import comparison_table, model_table, probe_table, score_table
from waggle.policy.load import load
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

PROBED = 100
"""Questions that are put otherwise."""
Told = dict[str, Any]


def evaluate_command(
    console: Console, models: Sequence[str], config: Config, answers: int, probe: bool, json_file: Path | None
) -> None:
    """Ask, print, and write the figures where wanted.

    Args:
        answers: how many to each question.
        probe: whether to look for costs elsewhere, see `probes.py`.

    Raises:
        WaggleError: a model, run or setting that cannot be used.
    """
    runs = [model for model in models if (Path(model) / "run.json").exists()]
    if answers > 1 and not config.eval.temperature:
        raise ConfigError("--answers above 1 needs eval.temperature above 0: greedy answers are all the same")
    if runs and (len(models) > 1 or answers > 1 or probe):
        raise ConfigError(f"{runs[0]} is a run; name models of it, e.g. {Path(runs[0]) / 'node-1' / 'model'}")
    if len(set(models)) < len(models):
        raise ConfigError("a model is named twice; equal models answer equally")
    told = _of_run(console, Path(runs[0])) if runs else _of_models(console, models, config, answers, probe)
    if json_file:
        write_atomic(json_file, json_line(told).encode())


class Exam:
    """The questions of a charter, and those who grade: `with closing(Exam(charter, config, files)) as exam:`.

    Args:
        files: the folder of task files.
    """

    def __init__(self, charter: Charter, config: Config, files: Path | None = None) -> None:
        self.taskset, self._config = Taskset(charter, files), config
        self._graders = Graders(charter.families, functions=bool(config.tasks.file))

    def close(self) -> None:
        """End the graders."""
        self._graders.close()

    def tasks(self, count: int = 0) -> list[Task]:
        """Distinct questions that only report; as many as are configured by default."""
        return self.taskset.heldout("report", count or self._config.eval.report, self._config.tasks.families)

    def report(self, policy: Policy, answers: int = 1) -> tuple[list[Outcome], int]:
        """Ask them all, each counted as often as it is drawn; what came of it, and the tokens it took."""
        count, families = self._config.eval.report, self._config.tasks.families
        return self.ask(policy, self.tasks(), answers, self.taskset.frequencies("report", count, families))

    def ask(
        self, policy: Policy, tasks: Sequence[Task], answers: int = 1, times: Sequence[int] = ()
    ) -> tuple[list[Outcome], int]:
        """Ask some questions; see `ask`."""
        names = {digest: family.label for digest, family in self.taskset.families.items()}
        return ask(
            partial(generate, policy), self._graders, tasks, names, answers, self._config.eval.temperature, times
        )

    def outcomes(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[Outcome]:
        """What answers that were given elsewhere are worth, one to each question."""
        names = {digest: family.label for digest, family in self.taskset.families.items()}
        verdicts = self._graders.grade(list(zip(tasks, texts, strict=True)))
        return [
            Outcome(task.question, names[task.ref.config], task.truth, 1, (verdict.reward,))
            for task, verdict in zip(tasks, verdicts, strict=True)
        ]


def _of_models(console: Console, models: Sequence[str], config: Config, answers: int, probe: bool) -> Told:
    told: Told = {}
    first: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        charter = build.found_charter(config, build.local_key(config.run.seed, 0), "evaluation", Path(folder))
        with closing(Exam(charter, config, Path(folder))) as exam:
            for model in models:
                policy = load_model(model, config)
                outcomes, _ = exam.report(policy, answers)
                said = told[model] = {"pass@1": figures(scores(outcomes))}
                if answers > 1:
                    said[f"pass@{answers}"] = figures(scores(outcomes, answers))
                console.print(model_table(model, outcomes, answers))
                if first:
                    compared = compare(first, outcomes)
                    said[f"against {models[0]}"] = {one.family: list(one[2:]) for one in compared}
                    console.print(comparison_table(model, models[0], compared))
                first = first or outcomes
                if probe:
                    said |= _probed(console, policy, exam, config)
                del policy  # before the next one is loaded
    return told


def load_model(model: str, config: Config) -> Policy:
    """A model that answers as the configuration says."""
    build.set_threads(config)
    return load(model, device=config.model.device, precision=config.model.precision, seed=config.run.seed)


def _probed(console: Console, policy: Policy, exam: Exam, config: Config) -> Told:
    """What a model does elsewhere, beside what it does on some of its own questions."""
    some = exam.tasks(min(PROBED, config.eval.report))
    put = {"as they are": some} | {how: [probes.perturbed(task, how) for task in some] for how in probes.PERTURBED}
    rows = {name: Score(0, scores(exam.ask(policy, tasks)[0]), 0).over() for name, tasks in put.items()}
    unseen = probes.unseen_families(exam.taskset.charter)
    if unseen:
        charter = new_charter(build.local_key(config.run.seed, 0), "unseen", unseen, created_ms=0)
        other = Exam(charter, config.model_copy(update={"tasks": config.tasks.model_copy(update={"families": ()})}))
        with closing(other):
            asked = other.ask(policy, other.tasks(probes.UNSEEN * len(unseen)))[0]
        rows |= {f"unseen: {one.family}": one for one in scores(asked)}
    bits = probes.bits_per_byte(policy, probes.prose())
    console.print(probe_table(rows, bits))
    return {"probes": {name: _figures(row) for name, row in rows.items()}, "bits_per_byte": bits}


def _of_run(console: Console, path: Path) -> Told:
    folders = [RunFolder(folder) for folder in node_folders(path)]
    config, charter = folders[0].config(), folders[0].charter()
    trained = [folder for folder in folders if folder.model.exists()]
    if not trained:
        raise ModelError(f"no node of {path} has exported a model yet; let it play until its first evaluation")
    file = path / "before.bin"
    if not file.exists():
        write_atomic(file, encode(ask_model(config.model.name, charter, config, path / build.FILES)))
    before = read_noun(Score, file)
    rows = [(f.path.name, ask_model(str(f.model), charter, config, path / build.FILES)) for f in trained]
    for name, score in rows:
        write_atomic(path / f"after-{name}.bin", encode(score))
    show_run(console, before, rows, charter, folders)
    return {name: figures(score.families) for name, score in (("before", before), *rows)}


def show_run(
    console: Console, before: Score, after: Sequence[tuple[str, Score]], charter: Charter, folders: Sequence[RunFolder]
) -> None:
    """What came of a run: the table, and that no held-out question was trained on."""
    console.print(score_table(before, after, build.labels(charter)))
    console.print(f"held-out questions that were trained on: {sum(map(_overlap, folders))}")


def _overlap(folder: RunFolder) -> int:
    """Held-out questions that a node has trained on, which are none."""
    newest = folder.newest_checkpoint()
    return int(read_noun(Snapshot, newest / "state.bin").state.totals.get("overlap", 0)) if newest else 0


def ask_model(model: str, charter: Charter, config: Config, files: Path) -> Score:
    """How well a model answers the report questions of a charter."""
    with closing(Exam(charter, config, files)) as exam:
        outcomes, tokens = exam.report(load_model(model, config))
    return Score(0, scores(outcomes), tokens)


def outcomes_of(model: str, charter: Charter, config: Config, files: Path) -> list[Outcome]:
    """A model's own answers to those, one by one."""
    with closing(Exam(charter, config, files)) as exam:
        return exam.report(load_model(model, config))[0]


def figures(families: tuple[FamilyScore, ...]) -> dict[str, list[float]]:
    """Right answers, questions, rate and interval of each family and of all, for JSON."""
    return {one.family: _figures(one) for one in (*families, Score(0, families, 0).over())}


def _figures(one: FamilyScore) -> list[float]:
    return [one.correct, one.asked, one.rate, *one.interval]
