"""Functions from files of the user's: found, refused in a sentence, and told from where they fail."""

from pathlib import Path

import pytest

from waggle.core.config import LOSSES, SAMPLERS, load
from waggle.core.errors import ConfigError, RunError, TaskError
from waggle.core.own import is_own, of_the_user, own_digest, own_function


def written(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:f"


def test_a_function_of_a_file_or_of_a_module(tmp_path: Path) -> None:
    assert own_function(written(tmp_path, "def f(x):\n    return x + 1\n"))(2) == 3
    assert own_function("math:sqrt")(9) == 3.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no function 'f'"),
        ("f = 3", "there is no function 'f'"),
        ("def f(:", "SyntaxError"),
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        own_function(written(tmp_path, text))


def test_a_missing_file_or_module_is_one_sentence(tmp_path: Path) -> None:
    for name in (f"{tmp_path / 'none.py'}:f", "nothing_of_the_kind:f"):
        with pytest.raises(ConfigError, match="cannot be used"):
            own_function(name)
    with pytest.raises(ConfigError, match="cannot read"):
        own_digest(f"{tmp_path / 'none.py'}:f")


def test_what_it_raises_is_told_with_its_line(tmp_path: Path) -> None:
    function = own_function(written(tmp_path, "def f():\n    return {}['x']\n"))
    with (
        pytest.raises(RunError, match=r"mine.py:f failed \(mine.py, line 2: KeyError: 'x'\)"),
        of_the_user("mine.py:f"),
    ):
        function()
    with pytest.raises(TaskError), of_the_user("mine.py:f"):
        raise TaskError("as it is")


def test_a_digest_follows_the_text(tmp_path: Path) -> None:
    first = own_digest(written(tmp_path, "def f(): pass"))
    assert own_digest(f"{tmp_path / 'mine.py'}:g") == first
    assert own_digest(written(tmp_path, "def f(): return 1")) != first
    assert own_digest("math:sqrt") == ""


def test_settings_take_names_and_own_functions_and_nothing_else() -> None:
    for name in LOSSES:
        assert load(None, [f"learn.loss={name}"]).learn.loss == name
    for name in SAMPLERS:
        assert load(None, [f"share.sampler={name}"]).share.sampler == name
    config = load(None, ["share.sampler=mine.py:f", "learn.loss=mine.py:g", "learn.clip_low=0.1"])
    assert is_own(config.share.sampler)
    with pytest.raises(ConfigError, match="there is no sampler 'best'; use uniform, top_reward, weighted, or FILE"):
        load(None, ["share.sampler=best"])
    with pytest.raises(ConfigError, match="there is no loss 'ppo'; use clip, "):
        load(None, ["learn.loss=ppo"])
    with pytest.raises(ConfigError, match=r"share\.quota has no effect"):
        load(None, ["share.sampler=mine.py:f", "share.quota=0.2"])
