"""`waggle simulate`: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Waggle
from waggle.lab.attacks import ATTACKS

SMALL = ("simulate", "--peers", "6", "--rounds", "4", "--memo")


def test_the_list_names_every_attack_and_what_stops_it(waggle: Waggle, here: Path) -> None:
    done = waggle("simulate", "--list")
    assert done.code == 0
    for attack in ATTACKS.values():
        assert f"{attack.name}: {attack.does}" in done.out
        assert attack.stopped_by in done.out
    assert not list(here.iterdir())


@pytest.mark.slow
def test_a_small_run_twice_is_equal_to_the_byte(waggle: Waggle, here: Path) -> None:
    for name in ("a", "b"):
        done = waggle(*SMALL, "--churn", "1", "--latency", "0.2", "--attack", "malformed", "--out", name)
        assert done.code == 0, done
        assert "5 honest peers went from" in done.out
        assert "refused: " in done.out
        assert "shared by all" in done.out
    assert sorted(path.name for path in (here / "a").iterdir()) == ["simulate.csv", "simulate.json"]
    for name in ("simulate.csv", "simulate.json"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()
    lines = (here / "a" / "simulate.csv").read_text().splitlines()
    assert lines[0].startswith("round,online,plays,skill,")
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "2", "4"]
    summary = json.loads((here / "a" / "simulate.json").read_text())
    assert summary["setup"]["attack"] == "malformed"
    assert summary["setup"]["hostile"] == 1
    assert summary["last"]["round"] == 4


@pytest.mark.slow
def test_without_out_nothing_is_written(waggle: Waggle, here: Path) -> None:
    done = waggle(*SMALL[:-1], "--set", "round.local=2")
    assert done.code == 0
    assert "every check made by every peer" in done.out
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--attack", "nope"), 2, "there is no attack 'nope'"),
        (("--hostile", "2"), 2, "--hostile has no effect without --attack"),
        (("--list", "--peers", "4"), 2, "leave out --peers"),
        (("--peers", "4", "--attack", "sybil"), 2, "fewer than 2 honest"),
        (("--partition", "--rounds", "2"), 2, "at least 3 rounds"),
        (("--set", "learn.loss=clip"), 2, "[round] and [share] alone"),
        (("--set", "round.local=none"), 2, "round.local"),
        (("--out", "full"), 5, "not empty"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    waggle: Waggle, here: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    (here / "full").mkdir()
    (here / "full" / "something").touch()
    done = waggle("simulate", *options)
    assert done.code == code
    assert said in done.sentence
    assert [path.name for path in here.rglob("*")] == ["full", "something"]
