"""A run from the command line, whole: it plays, is looked at, measured, talked to and resumed."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Waggle, task_file
from waggle.cli.run import new_folder, with_default_end
from waggle.core.config import load
from waggle.core.errors import RunError

SETTINGS = (
    *("model.name=tiny", "run.rounds=2", "eval.every=1", "eval.steer=4", "eval.report=4"),
    *("round.local=2", "round.foreign=1", "round.group_size=4", "round.refills=0", "round.max_tokens=4"),
    *("tasks.set=none", "tasks.file=asked.jsonl", "tasks.grader=regex", "tasks.share_file=true"),
)


@pytest.mark.slow
def test_a_run_from_beginning_to_end(waggle: Waggle, here: Path) -> None:
    task_file(here / "asked.jsonl")
    sets = [f"--set={setting}" for setting in SETTINGS]
    done = waggle("swarm", "--nodes", "2", "--run", "run", *sets)
    assert (done.code, done.err) == (0, "")
    assert "2 nodes, model tiny, 1 thread each" in done.out
    assert "own answers to 4 held-out questions: share right, 95 % interval" in done.out
    assert "held-out questions that were trained on: 0" in done.out
    assert "waggle chat run/node-1/model" in done.out
    status = json.loads(waggle("status", "run", "--json").out)
    assert [(node["state"], node["round"]) for node in status["nodes"]] == [("ended", 2)] * 2
    assert "can be resumed from round 2" in waggle("doctor", "run").out
    assert waggle("chat", "run", "--message", "letter 3?", "--max-tokens", "4").code == 0
    measured = waggle("eval", "run", "--json", "figures.json")
    assert measured.code == 0
    assert "held-out questions that were trained on: 0" in measured.out
    assert set(json.loads((here / "figures.json").read_text())) == {"before", "node-1", "node-2"}
    again = waggle("swarm", "--resume", "run", "--set", "run.rounds=3")
    assert again.code == 0
    assert "before the first round" not in again.out  # the baseline was kept
    assert "node-2 goes on after round 2" in (here / "run" / "node-2" / "log").read_text()
    assert [node["round"] for node in json.loads(waggle("status", "run", "--json").out)["nodes"]] == [3, 3]
    taken = waggle("swarm", "--run", "run", *sets)
    assert (taken.code, "--resume run" in taken.sentence) == (5, True)
    assert waggle("join", "--resume", "run").sentence.endswith("continue it with: waggle swarm --resume run")


@pytest.mark.slow
def test_models_are_asked_the_same_and_compared(waggle: Waggle, here: Path) -> None:
    sets = ("--set", "eval.report=8", "--set", "tasks.set=short", "--json", "figures.json")
    done = waggle("eval", "tiny", "tiny-b", "--answers", "2", "--probe", *sets)
    assert (done.code, done.err) == (0, "")
    assert "tiny: held-out questions, 2 answers each, 95 % intervals" in done.out
    for text in ("tiny-b less tiny, question by question", "pass@2", "one example fewer", "unseen: gcd", "bits a byte"):
        assert text in done.out
    told = json.loads((here / "figures.json").read_text())
    assert set(told) == {"tiny", "tiny-b"}
    assert set(told["tiny"]) == {"pass@1", "pass@2", "probes", "bits_per_byte"}
    assert set(told["tiny-b"]) == {*told["tiny"], "against tiny"}
    assert set(told["tiny"]["pass@1"]) == {"chain_sum", "basic_arithmetic", "needle_haystack", "all"}
    assert told["tiny"]["bits_per_byte"] > 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tiny", "tiny"), "a model is named twice"),
        (("tiny", "-k", "2", "--set", "eval.temperature=0"), "--answers above 1 needs eval.temperature above 0"),
        (("run", "tiny"), "run is a run; name models of it, e.g. run/node-1/model"),
    ],
)
def test_what_cannot_be_measured_is_said(waggle: Waggle, here: Path, arguments: tuple[str, ...], says: str) -> None:
    (here / "run").mkdir()
    (here / "run" / "run.json").write_text("{}")
    done = waggle("eval", *arguments)
    assert (done.code, says in done.sentence) == (2, True), done.err


def fail_in(named: Path | None) -> None:
    """A run that leaves things and does not come to begin."""
    with new_folder(named, "swarm") as path:
        (path / "tasks").mkdir()
        (path / "tasks" / "x.jsonl").write_text("x")
        (path / "run.json").write_text("{}")
        raise KeyError


@pytest.mark.parametrize("named", [None, "run", "deep/run", "mine"])
def test_a_run_that_cannot_begin_leaves_nothing(here: Path, named: str | None) -> None:
    (here / "mine").mkdir()
    with pytest.raises(KeyError):
        fail_in(here / named if named else None)
    assert [path.name for path in here.rglob("*")] == ["mine"]


def test_runs_of_one_second_have_folders_of_their_own(here: Path) -> None:
    with new_folder(None, "swarm") as first, new_folder(None, "swarm") as second:
        (first / "run.json").write_text("{}")
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
    with pytest.raises(RunError, match="already holds a run"), new_folder(first, "swarm"):
        pass


def test_a_folder_that_is_being_set_up_is_left_alone(here: Path) -> None:
    with new_folder(here / "run", "node") as first:
        (first / "key").write_text("precious")
        with pytest.raises(RunError, match="another process is setting up a run"), new_folder(here / "run", "node"):
            pass
        assert (first / "key").read_text() == "precious"


def test_a_run_that_was_stopped_during_its_set_up_can_be_begun_again(here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "key").write_text("kept")
    with pytest.raises(RunError, match="is not empty"), new_folder(here / "run", "node"):
        pass
    with pytest.raises(KeyError), new_folder(here / "run", "node", half_made=True):
        raise KeyError
    assert (here / "run" / "key").read_text() == "kept"
    (here / "run" / "mine").write_text("")
    with pytest.raises(RunError, match="is not empty"), new_folder(here / "run", "node", half_made=True):
        pass


def test_a_swarm_ends_by_itself() -> None:
    assert with_default_end(load()).run.minutes == 19
    assert with_default_end(load(None, ["run.rounds=3"])).run.minutes == 0
    assert with_default_end(load(None, ["run.minutes=2"])).run.minutes == 2
