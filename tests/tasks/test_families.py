import json
import os
import subprocess
import sys

import pytest

from waggle.core.errors import TaskError
from waggle.tasks import gym
from waggle.tasks.families import UNUSABLE, family, named_set, set_names, usable, why_unusable


def test_the_configuration_is_canonical_and_the_version_is_the_installed_one() -> None:
    made = family("chain_sum", {"min_terms": 2, "max_terms": 3}, max_tokens=6)
    assert made.config == '{"max_terms":3,"min_terms":2}'
    assert made.version == gym.version()


@pytest.mark.parametrize(
    ("env", "config", "said"),
    [
        ("chain_som", {}, "chain_sum"),
        ("xyzzy", {}, "waggle tasks list"),
        ("chain_sum", {"max_term": 3}, "max_terms"),
        ("chain_sum", {"seed": 3}, "has no setting 'seed'"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "refuses"),
        ("chain_sum", {"min_terms": "two"}, "refuses"),
        ("chain_sum", {"min_terms": float("nan")}, "not plain JSON"),
        ("chain_sum", {"min_terms": {1, 2}}, "not plain JSON"),
    ],
)
def test_what_cannot_be_a_family_is_refused_with_a_hint(env: str, config: dict[str, object], said: str) -> None:
    with pytest.raises(TaskError, match=said):
        family(env, config)


def test_unknown_working_and_set_are_refused() -> None:
    with pytest.raises(TaskError, match="working style"):
        family("chain_sum", working="magic")
    with pytest.raises(TaskError, match="starter"):
        named_set("beginner")


@pytest.mark.parametrize("name", set_names())
def test_named_sets_are_complete_and_have_unique_labels(name: str) -> None:
    families = named_set(name)
    assert len({f.label for f in families}) == len(families)
    assert all(json.loads(f.config) is not None for f in families)


def test_the_paper_has_nine_of_which_one_cannot_be_used() -> None:
    paper = named_set("paper")
    assert len(paper) == 9
    assert [f.env for f in paper if why_unusable(f)] == ["propositional_logic"]
    assert len(usable(paper)) == 8


def test_sequences_that_grow_without_end_are_refused() -> None:
    assert "max_complexity" in why_unusable(family("number_sequence"))
    assert not why_unusable(family("number_sequence", {"max_complexity": 1}))


def test_all_environments_are_listed() -> None:
    assert len(named_set("all")) == 105
    assert set(UNUSABLE) < set(gym.environments())


def test_the_starter_set_can_be_used_and_shows_some_working() -> None:
    starter = named_set("starter")
    assert usable(starter) == starter
    assert any(f.working for f in starter)
    assert all(not f.working for f in named_set("short"))


def test_importing_the_tasks_imports_neither_reasoning_gym_nor_torch() -> None:
    modules = "check families files grade gym questions stream taskset verdicts worker working".split()
    program = f"import sys, {', '.join('waggle.tasks.' + name for name in modules)}\n"
    program += "print([name for name in ('reasoning_gym', 'torch', 'transformers') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert told.stdout == "[]\n", told.stderr
