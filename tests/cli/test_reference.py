"""Every command and setting is documented, and the pages say what the program says."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.conftest import Waggle
from waggle.cli.reference import sections
from waggle.core.config import Config, load

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_pages_are_what_the_program_says(generate: ModuleType) -> None:
    assert generate.outdated() == [], "run `make docs`"


@pytest.mark.slow
def test_a_page_that_differs_is_noticed(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert generate.main(["--check"]) == 1
    assert "docs/cli.md is out of date" in capsys.readouterr().err


def test_every_command_is_documented(generate: ModuleType) -> None:
    told = dict(generate.commands())
    page = (DOCS / "cli.md").read_text()
    assert len(told) > 14
    for name, text in told.items():
        assert f"## `{name}`" in page
        assert "..." not in text.partition("Commands:")[2], f"the first line of a help is cut off under {name}"
        summary = text.split("\n\n")[1].strip()
        assert summary, name
        options = [line.strip() for line in text.partition("Options:")[2].splitlines() if line.startswith("  -")]
        assert all("  " in line for line in options), f"{name} has an option without help"


def test_every_error_has_an_exit_code_of_its_own(generate: ModuleType) -> None:
    codes = [code for code, _ in generate.exit_codes()]
    assert codes == sorted(set(codes)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


def test_every_setting_says_what_it_is() -> None:
    found = {f"{section.name}.{setting.name}": setting for section in sections() for setting in section.settings}
    assert set(found) == {f"{s}.{f}" for s, fields in Config().model_dump().items() for f in fields}
    assert all(setting.doc.endswith(".") and setting.type and setting.default for setting in found.values())
    assert found["round.local"].type == "integer, at least 1, at most 256"
    assert found["learn.clip_low"].type == "number, above 0, below 1"
    assert found["tasks.families"].type == "list of texts"
    assert found["model.device"].type == 'one of "auto", "cpu", "cuda", "mps"'


@pytest.mark.parametrize("options", [(), ("--explain",)])
def test_the_printed_configuration_can_be_read_again(waggle: Waggle, here: Path, options: tuple[str, ...]) -> None:
    done = waggle("config", "--set", "round.local=4", "--set", 'model.name=a "b" \\c', *options)
    (here / "kept.toml").write_text(done.out)
    assert load(here / "kept.toml") == load(None, ["round.local=4", 'model.name=a "b" \\c'])
    assert ("# I: groups of own answers per round." in done.out) == bool(options)


@pytest.mark.slow
def test_a_dry_run_says_what_would_happen_and_leaves_nothing(waggle: Waggle, here: Path) -> None:
    done = waggle("config", "--dry-run", "--set", "model.name=tiny", "--set", "tasks.set=short", "--nodes", "2")
    assert done.code == 0
    assert "chain_sum" in done.out
    assert "2 on" in done.out
    assert "19 minutes" in done.out
    assert "memory    runtime " in done.out
    assert list(here.iterdir()) == []
    for setting, said in (("model.name=/nowhere", "/nowhere"), ("model.memory_gb=0.1", "does not fit into memory")):
        refused = waggle("config", "--dry-run", "--set", "model.name=tiny", "--set", setting)
        assert refused.code == 4
        assert said in refused.sentence


@pytest.mark.slow
def test_a_dry_run_does_not_convert_the_model(waggle: Waggle, here: Path) -> None:
    done = waggle("config", "--dry-run")
    assert done.code == 0
    assert "memory    planned when the model has been fetched" in done.out
    assert list(here.parent.rglob("*")) == [here, here.parent / "home"]
