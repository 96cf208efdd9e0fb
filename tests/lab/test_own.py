"""What a recipe takes from files outside of the package: samplers, losses, questions and graders."""

import json
from pathlib import Path

import pytest

from waggle.core.errors import ConfigError
from waggle.lab.cell import run_cell
from waggle.lab.experiment import mark_of
from waggle.lab.recipe import read_recipe

CODE = """
from waggle.swarm.sampling import Decision

def sample(candidates, limit, rng):
    used = {n for n, one in list(enumerate(candidates)) if one.group.has_signal}
    used = set(sorted(used)[:limit // 2])
    return [Decision(one.group.id, n in used, "mine") for n, one in enumerate(candidates)]

def loss(x):
    return -0.0 * x.advantages_N * x.logprobs_N

def grade(answer, truth):
    return float(any(letter in answer for letter in truth))
"""
FILE = """
name = "letters"
title = "Letters"
nodes = 2
rounds = 4
every = 1
seeds = [0]
base = "tiny"
reference = "both"
set = ["round.group_size=4", "round.refills=0", "learn.learning_rate=0.01", "eval.report=6",
       "round.local=2", "round.foreign=2"]

[[family]]
file = "{folder}/letters.jsonl"
grader = "{folder}/mine.py:grade"
shots = 0
max_tokens = 4

[[arm]]
name = "both"

[[arm]]
name = "sampled"
set = ["share.sampler={folder}/mine.py:sample"]

[[arm]]
name = "lost"
set = ["learn.loss={folder}/mine.py:loss"]
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def letters(folder: Path) -> Path:
    (folder / "mine.py").write_text(CODE)
    lines = [{"question": f"letter {i}?", "answer": "abcdefghijklm01234"} for i in range(400)]
    (folder / "letters.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = folder / "letters.toml"
    file.write_text(FILE.format(folder=folder))
    return file


def test_an_own_sampler_and_loss_are_played_and_belong_to_the_cell(tmp_path: Path) -> None:
    recipe = read_recipe(letters(tmp_path))
    both, sampled, lost = (run_cell(recipe, arm, 0) for arm in recipe.arm)
    assert lost == run_cell(recipe, recipe.arm[2], 0)
    assert len({both, sampled, lost}) == 3
    marks = [mark_of(recipe, arm) for arm in recipe.arm]
    assert len(set(marks)) == 3
    (tmp_path / "mine.py").write_text(CODE.replace("-0.0", "0.0"))
    assert not set(marks) & {mark_of(recipe, arm) for arm in recipe.arm}


def test_questions_and_a_grader_of_ones_own_are_asked_and_belong_to_the_cell(tmp_path: Path) -> None:
    recipe = read_recipe(letters(tmp_path))
    played = run_cell(recipe, recipe.arm[0], 0)
    assert played == run_cell(recipe, recipe.arm[0], 0)
    assert played.splitlines()[0].split(",")[-1] == "letters"
    mark = mark_of(recipe, recipe.arm[0])
    with (tmp_path / "letters.jsonl").open("a") as file:
        file.write('{"question": "one more?", "answer": "abc"}\n')
    assert mark_of(recipe, recipe.arm[0]) != mark


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('base = "tiny"\n', "", "with a family from a file, name a base model"),
        ("shots = 0", 'env = "chain_sum"', "and not both"),
        ("shots = 0", 'working = "sum-steps"', "have no effect on the questions of"),
        ("letters.jsonl", "none.jsonl", "cannot read the task file"),
        ("mine.py:grade", "mine.py:none", "there is no function 'none'"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = letters(tmp_path)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=says):
        read_recipe(file)


def test_a_sampler_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    file = letters(tmp_path)
    file.write_text(file.read_text().replace("mine.py:sample", "mine.py:none"))
    with pytest.raises(ConfigError, match="there is no function 'none'"):
        read_recipe(file)
