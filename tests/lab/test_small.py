"""The small model's lessons: how often it sees a right answer, and in which manner."""

from itertools import islice
from pathlib import Path

import pytest

from tests.lab.recipes import mini
from waggle.core.errors import ConfigError
from waggle.lab.recipe import Recipe, read_recipe
from waggle.lab.small import WarmUp, _examples, _tokenizer, _words


def lessons(recipe: Recipe, warm_up: WarmUp, right: float) -> list[str]:
    tokenizer = _tokenizer(_words(recipe.families()))
    found = islice(_examples(tokenizer, recipe.families(), 0, lambda: right, warm_up), 200)
    return [tokenizer.decode(ids[start:]) for ids, start in found]


def test_right_answers_begin_in_its_manner_as_often_as_is_said(tmp_path: Path) -> None:
    recipe = read_recipe(mini(tmp_path))
    plain = lessons(recipe, WarmUp(), 1.0)
    assert not any(answer.startswith("ok\n") for answer in plain)
    always = lessons(recipe, WarmUp(says="ok\n"), 1.0)
    assert always == ["ok\n" + answer for answer in plain]
    seldom = sum(answer.startswith("ok\n") for answer in lessons(recipe, WarmUp(says="ok\n", manner=0.2), 1.0))
    assert 20 <= seldom <= 60
    assert not any(answer.startswith("ok\n") for answer in lessons(recipe, WarmUp(says="ok\n"), 0.0))  # it hedges


def test_a_manner_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="manner has no effect without says"):
        read_recipe(mini(tmp_path, ("[small]", "[small]\nmanner = 0.1")))
