"""Configuration: strict values, one sentence for each mistake, and TOML that reads back."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waggle.core.config import Config, RoundConfig, Section, TasksConfig, dump, load
from waggle.core.errors import ConfigError


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[round]\nlocal = 2\nforeign = 3\n[model]\nname = "tiny"\n')
    config = load(file, ["round.local=5", "model.name=smollm2-135m"])
    assert (config.round.local, config.round.foreign, config.round.group_size) == (5, 3, 16)
    assert config.model.name == "smollm2-135m"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("learn.learning_rate=1e-4", 1e-4),
        ("learn.learning_rate=1", 1.0),
        ("model.name=a/b c", "a/b c"),
        ('model.name="5"', "5"),
        ("share.logprobs=false", False),
        ('tasks.families=["chain_sum", "products"]', ("chain_sum", "products")),
        (" round.local =4", 4),
    ],
)
def test_override_values(override: str, value: object) -> None:
    section, field = override.partition("=")[0].strip().split(".")
    assert getattr(getattr(load(None, [override]), section), field) == value


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("round.locl=4", r"no setting round\.locl .--set.; `waggle config` lists them all"),
        ("rond.local=4", "no setting rond"),
        ("round.local", "not of the form section.field=value"),
        ("local=4", "not of the form"),
        ("round.local.x=4", "not of the form"),
        ("round.local=0", r"round\.local .*greater than or equal to 1"),
        ("round.local=4.5", r"round\.local .*valid integer"),
        ('round.local="4"', "valid integer"),
        ("round.local=true", "valid integer"),
        ("round.local=", "valid integer"),
        ("round.local=4\nforeign=9", "valid integer"),
        ("share.logprobs=1", "valid boolean"),
        ("model.name=5", "valid string"),
        ("round.temperature=nan", "finite number"),
        ("learn.loss=magic", "there is no loss 'magic'; use clip, cispo, soft_gate, reinforce, or FILE.py:function"),
        ("tasks.families=chain_sum", "valid tuple"),
        ("tasks.families=[1]", "valid string"),
        ("tasks.share_file=true", "no effect without tasks.file"),
    ],
)
def test_mistakes_are_said_in_one_sentence(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(None, [override])
    assert "\n" not in str(caught.value).replace(repr(override), "")


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"share\.sampler has no effect"):
        load(None, ["round.foreign=0", "share.sampler=top_reward"])
    with pytest.raises(ConfigError, match=r"share\.trust has no effect"):
        load(None, ["round.foreign=0", "share.trust=false"])
    with pytest.raises(ConfigError, match=r"share\.floor has no effect"):
        load(None, ["share.tit_for_tat=false", "share.floor=0.5"])
    with pytest.raises(ConfigError, match="clip_low and clip_high have no effect"):
        load(None, ["learn.loss=reinforce", "learn.clip_low=0.1"])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[round\n", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"round = 3\n", "round"),
        (b"[x]\n", "no setting x"),
    ],
)
def test_bad_files_are_said_with_their_path(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=says) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: No such file"):
        load(tmp_path / "none.toml")


def test_a_section_given_as_a_value_cannot_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("round = 3\n")
    with pytest.raises(ConfigError, match="round is a section"):
        load(file, ["round.local=4"])


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=20), st.floats(0.05, 4), st.integers(1, 256))
def test_what_is_dumped_is_loaded(name: str, temperature: float, local: int) -> None:
    families = (name, 'a"b\\c\n')
    config = Config(
        tasks=TasksConfig(file=name, families=families), round=RoundConfig(temperature=temperature, local=local)
    )
    assert Config.model_validate(tomllib.loads(dump(config))) == config


def test_every_field_is_documented() -> None:
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        assert section.__doc__, name
        for inner, described in section.model_fields.items():
            assert described.description, f"{name}.{inner}"


def test_a_configuration_cannot_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().round.local = 3  # type: ignore[misc]
