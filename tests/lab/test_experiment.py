"""An experiment from recipe to report: repeatable to the byte, resumable, and clear about what it will not do."""

import csv
import io
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lab.recipes import mini
from waggle.cli import app, register
from waggle.core.errors import ConfigError, RunError
from waggle.core.types import Sampling
from waggle.lab.cell import COLUMNS, run_cell
from waggle.lab.experiment import cell_file, cells, mark_of, missing
from waggle.lab.hostile import PLANTED, Hostile
from waggle.lab.outcome import counted, lines, read_curves
from waggle.lab.recipe import Arm, Claim, Questions, Recipe, Small, read_recipe
from waggle.node.build import local_key
from waggle.policy.load import load
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return read_recipe(mini(tmp_path))


def finished(recipe: Recipe, folder: Path) -> None:
    """Every cell, played in this process."""
    (folder / "cells").mkdir(parents=True)
    for cell in cells(recipe):
        text = run_cell(recipe, cell.arm, cell.seed)
        cell_file(folder, cell).write_text(f"{mark_of(recipe, cell.arm)}\n{text}")


def run(*arguments: str) -> tuple[int, str]:
    register()
    result = CliRunner().invoke(app, ["experiment", *arguments], env={"COLUMNS": "300"})
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_cells_come_seed_by_seed_and_an_arm_may_have_fewer(recipe: Recipe) -> None:
    names = [cell.name for cell in cells(recipe)]
    assert names == ["solo-0", "both-0", "choosy-0", "truth-0", "replay-0", "solo-1", "both-1", "choosy-1"]
    assert [cell.name for cell in cells(recipe, ["both"])] == ["both-0", "both-1"]


@pytest.mark.parametrize("name", ["solo", "both", "choosy", "truth", "replay"])
def test_a_cell_follows_from_its_seed(recipe: Recipe, name: str) -> None:
    arm = next(arm for arm in recipe.arm if arm.name == name)
    first = run_cell(recipe, arm, 0)
    assert run_cell(recipe, arm, 0) == first
    head, *rows = first.splitlines()
    assert head.split(",") == [*COLUMNS, "worked", "chain_sum"]
    assert [row.split(",")[:2] for row in rows] == [[str(r), str(n)] for r in range(3) for n in (1, 2)]
    last = dict(zip(head.split(","), rows[-1].split(","), strict=True))
    assert (float(last["generated"]) > 0) == (name != "truth")
    assert (float(last["gflops"]) > 0) == (float(last["generated"]) + float(last["trained"]) > 0)


def test_the_report_is_made_from_cells_alone_and_twice_the_same(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("one", "two"):
        finished(recipe, tmp_path / name)
        code, said = run(str(mini(tmp_path)), "--out", str(tmp_path / name))
        assert code == 0, said
        assert "8 cells, 0 to play" in said
        assert "2 seeds show a true difference in area between choosy and both of 0." in said
    one, two = (tmp_path / name for name in ("one", "two"))
    for file in sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file()):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    report = (one / "report.md").read_text()
    for word in ("| solo |", "| both |", "| choosy |", "equal operations", "equal rounds", "equal generated tokens"):
        assert word in report
    for plot in ("working.png", "short.png", "metric.png"):
        assert (one / plot).read_bytes().startswith(b"\x89PNG")


def test_areas_compare_seed_by_seed(recipe: Recipe, tmp_path: Path) -> None:
    finished(recipe, tmp_path / "out")
    curves = read_curves(recipe, tmp_path / "out", cells(recipe))
    families = [name for names in counted(recipe, curves).values() for name in names]
    found = {line.arm: line for line in lines(recipe, curves, families, "round")}
    assert found["both"].against is None
    assert found["choosy"].against is not None
    assert (found["choosy"].area.seeds, found["truth"].area.seeds) == (2, 1)


def rounds_of(text: str) -> dict[str, list[dict[str, str]]]:
    """Rows by node."""
    rows: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        rows.setdefault(row["node"], []).append(row)
    return rows


def test_hostile_nodes_have_no_row_and_honest_ones_play_on(tmp_path: Path) -> None:
    for attack in ("useless", "planted-in-context", "long-answers", "lying-logprobs", "copied-experience", "flooding"):
        change = ('name = "both"\n', f'name = "both"\nnodes = 3\nattack = "{attack}"\nhostile = 1\n')
        recipe = read_recipe(mini(tmp_path, change))
        rows = rounds_of(run_cell(recipe, recipe.arm[1], 0))
        assert list(rows) == ["1", "2"], attack
        assert all(float(node[-1]["generated"]) > 0 for node in rows.values())


def test_what_a_hostile_node_answers(tmp_path: Path) -> None:
    recipe = read_recipe(mini(tmp_path))
    families = recipe.families()
    charter = new_charter(local_key(0, 0), "hostile", families, created_ms=0)
    taskset, graders = Taskset(charter), Graders(families, workers=0)
    policy = load(recipe.model(), device="cpu", precision="float32")
    config = recipe.config_of(recipe.arm[1], 0)
    task = next(t for t in taskset.heldout("steer", 4) if taskset.family(t.ref).working)
    rights = {"useless": 1, "sybil": 1, "long-answers": 3, "planted-in-context": 3, "planted-out-of-context": 0}
    for manner, num in {**rights, "wrong-truth": 0}.items():
        hostile = Hostile(policy, config, taskset, manner)
        (answers,) = hostile.generate([task], 4, Sampling(1.0, max_tokens=99, seed=1))
        right = [v.reward for v in graders.grade([(task, answer.text) for answer in answers])].count(1.0)
        assert right == num, manner
        assert any(PLANTED in answer.text for answer in answers) == manner.startswith("planted"), manner


def test_a_slow_node_plays_fewer_rounds_and_an_unlike_one_starts_elsewhere(tmp_path: Path) -> None:
    unlike = "unlike = 1\nunlike_model = { steps = 2, hidden = 16, layers = 1, batch = 8, seed = 5 }\n"
    change = ('name = "both"\n', f'name = "both"\nspread = 2.0\n{unlike}')
    recipe = read_recipe(mini(tmp_path, change))
    arm = recipe.arm[1]
    assert recipe.model(arm, 0) != recipe.model(arm, 1) == recipe.model()
    rows = rounds_of(run_cell(recipe, arm, 0))
    fast, slow = (float(rows[number][-1]["generated"]) for number in ("1", "2"))
    assert 0 < slow < fast


def test_an_arm_plays_on_until_it_has_done_as_many_operations(tmp_path: Path) -> None:
    recipe = read_recipe(mini(tmp_path))
    text = run_cell(recipe, recipe.arm[0], 0)
    reached = float(rounds_of(text)["1"][-1]["gflops"])
    more = recipe.model_copy(update={"gflops": 2.5 * reached})
    longer = run_cell(more, more.arm[0], 0)
    assert longer.startswith(text)
    assert int(longer.splitlines()[-1].split(",")[0]) > recipe.rounds


@pytest.mark.slow
def test_what_is_finished_is_kept_and_the_rest_is_played_by_processes(recipe: Recipe, tmp_path: Path) -> None:
    file, out = str(mini(tmp_path)), str(tmp_path / "out")
    code, said = run(file, "--out", out, "--arm", "solo", "--workers", "2")
    assert code == 0, said
    kept = cell_file(tmp_path / "out", cells(recipe)[0])
    before = kept.stat().st_mtime_ns
    code, said = run(file, "--out", out, "--arm", "solo", "--arm", "both", "--workers", "1")
    assert code == 0, said
    assert "4 cells, 2 to play" in said
    assert kept.stat().st_mtime_ns == before
    arm = recipe.arm[0]
    assert kept.read_text() == f"{mark_of(recipe, arm)}\n{run_cell(recipe, arm, 0)}"  # the process makes no difference


def test_a_cell_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "cells").mkdir(parents=True)
    cell = cells(recipe)[0]
    cell_file(folder, cell).write_text("# waggle cell 0000\n")
    with pytest.raises(RunError, match="made by another recipe"):
        missing(recipe, folder, [cell])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('reference = "both"', 'reference = "nobody"', "there is no arm 'nobody'"),
        ('name = "truth"', 'name = "solo"', "two arms are named 'solo'"),
        ("rounds = 2", "rounds = 2\nspeed = 3", "there is no setting speed"),
        ("round.foreign=2", "round.foreign=0", "has no effect"),
        ("round.local=4", "round.lokal=4", "there is no setting round.lokal"),
        ('env = "chain_sum"', 'env = "chain_of_sums"', "no environment"),
        ("nodes = 2", "nodes = two", "not valid TOML"),
        ("nodes = 2", "nodes = 0", "nodes"),
        ('kind = "truth"', 'kind = "lies"', "kind"),
        ("replayed = 2", "", "replayed"),
        ('kind = "truth"', 'attack = "kindness"\nhostile = 1', "no attack 'kindness'"),
        ('kind = "truth"', 'attack = "useless"', "hostile"),
        ('kind = "truth"', 'attack = "useless"\nhostile = 2', "some honest ones are left"),
        ('kind = "truth"', "unlike = 1", "unlike_model"),
        ("nodes = 2", 'nodes = 2\nbase = "tiny"', "have no effect with base"),
    ],
)
def test_a_recipe_that_means_nothing_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    code, said = run(str(mini(tmp_path, (old, new))), "--dry-run")
    assert code == 2, said
    assert says in said
    assert "Traceback" not in said


def test_unknown_arms_and_files_are_one_sentence(tmp_path: Path) -> None:
    code, said = run(str(mini(tmp_path)), "--arm", "best", "--dry-run")
    assert (code, "no arm 'best'" in said) == (2, True)
    code, said = run(str(tmp_path / "none.toml"))
    assert (code, "cannot read the recipe" in said) == (2, True)


def test_a_dry_run_plays_nothing(tmp_path: Path) -> None:
    code, said = run(str(mini(tmp_path)), "--out", str(tmp_path / "out"), "--dry-run")
    assert code == 0
    assert "8 cells, 8 to play" in said
    assert "power: told once two seeds of choosy and both are finished" in said
    assert not (tmp_path / "out").exists()


def test_a_full_disk_stops_it_and_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from waggle.lab import experimenting

    out = tmp_path / "out"
    finished(read_recipe(mini(tmp_path)), out)
    held = {path: path.read_bytes() for path in out.rglob("*.csv")}

    def refuse(target: Path, data: bytes) -> None:
        raise RunError(f"cannot write {target}: No space left on device; free some space")

    monkeypatch.setattr(experimenting, "write_atomic", refuse)
    code, said = run(str(mini(tmp_path)), "--out", str(out))
    assert code != 0
    assert "No space left" in said
    assert {path: path.read_bytes() for path in out.rglob("*.csv")} == held


def test_the_recipes_that_come_along_can_be_read() -> None:
    for file in sorted(Path("recipes").glob("*.toml")):
        recipe = read_recipe(file)
        assert recipe.name == file.stem
        assert cells(recipe)
        recipe.families()


def test_every_field_of_a_recipe_and_every_recipe_is_documented() -> None:
    page = Path("docs/experiments.md").read_text("utf-8")
    for part in (Recipe, Small, Questions, Arm, Claim):
        for name in part.model_fields:
            assert any(shown in page for shown in (f"`{name}`", f"[{name}]]`", f"[{name}]`")), (part, name)
    for file in Path("recipes").glob("*.toml"):
        assert f"| `{file.stem}` |" in page, file


def test_errors_are_of_the_kinds_that_the_command_line_knows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_recipe(tmp_path / "none.toml")


def processes_of(parent: int) -> list[int]:
    """Children of a process, from /proc."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found += [int(entry.name)] if int(fields[1]) == parent and fields[0] != "Z" else []
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_whoever_ends_an_experiment_ends_its_cells(tmp_path: Path, how: signal.Signals) -> None:
    file = mini(tmp_path, ("rounds = 2", "rounds = 2000"))
    command = [
        sys.executable,
        "-m",
        "waggle",
        "experiment",
        str(file),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until_s = time.monotonic() + 120
        while len(children := processes_of(process.pid)) < 3 and time.monotonic() < until_s:  # two, and who tracks them
            os.sched_yield()
        assert len(children) >= 3
        process.send_signal(how)
        process.wait(60)
    workers = [pidfd for pid in children if (pidfd := _pidfd(pid)) >= 0]
    for pidfd in workers:
        with selectors.DefaultSelector() as selector:
            selector.register(pidfd, selectors.EVENT_READ)
            assert selector.select(60), "a process outlives the experiment"
        os.close(pidfd)


def _pidfd(pid: int) -> int:
    """What becomes readable when the process ends; -1 where it has."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
