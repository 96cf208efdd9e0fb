"""What a host allows its node, on a clock that jumps."""

import os
import time
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config
from waggle.core.clock import FakeClock
from waggle.core.errors import ConfigError
from waggle.core.types import Family
from waggle.node.host import DAY_S, Host, within
from waggle.node.runfolder import RunFolder

FAMILY = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", config("model.name=scripted"), charter_of([FAMILY]))
    made.close()
    return made


@pytest.mark.parametrize(
    ("hours", "now", "inside"),
    [
        ("08:00-17:00", "08:00", True),
        ("08:00-17:00", "16:59", True),
        ("08:00-17:00", "17:00", False),
        ("22:00-07:00", "23:30", True),
        ("22:00-07:00", "06:59", True),
        ("22:00-07:00", "12:00", False),
    ],
)
def test_hours_may_pass_midnight(hours: str, now: str, inside: bool) -> None:
    assert within(hours, now) is inside


@pytest.mark.parametrize("hours", ["8-17", "24:00-07:00", "22:00", "22:00-07:60", "night"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.hours"):
        config(f"run.hours={hours}")


def test_a_node_rests_outside_of_its_hours_in_local_time(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST+5")
    time.tzset()
    clock = FakeClock(1_700_000_000 // DAY_S * DAY_S + 4 * 3600)  # 04:00 UTC, 23:00 there
    host = Host(folder, config("run.hours=22:00-07:00"), clock)
    assert host.rests() == ""
    clock.advance(8 * 3600)
    assert host.rests() == "outside of its hours, 22:00-07:00"
    monkeypatch.undo()
    time.tzset()


def test_a_paused_node_rests_until_it_may_go_on(folder: RunFolder) -> None:
    host = Host(folder, config(), FakeClock())
    folder.pause_file.touch()
    assert host.rests() == "paused; `waggle pause --off` lets it go on"
    os.unlink(folder.pause_file)
    assert host.rests() == ""


def test_the_bytes_of_a_day_are_counted_over_restarts_and_anew_each_day(folder: RunFolder) -> None:
    clock, settings = FakeClock(), config("net.day_mb=0.001")
    host = Host(folder, settings, clock)
    assert host.may_talk()
    host.pace.meter = lambda: 600
    assert host.may_talk()
    again = Host(folder, settings, clock)
    again.pace.meter = lambda: 399
    assert again.may_talk()
    again.pace.meter = lambda: 400
    assert not again.may_talk()
    assert not Host(folder, settings, clock).may_talk()
    clock.advance(DAY_S)
    assert again.may_talk()


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"day": "x", "bytes": 1}', b"\xff"])
def test_a_damaged_count_is_none(folder: RunFolder, damage: bytes) -> None:
    folder.usage_file.write_bytes(damage)
    assert Host(folder, config("net.day_mb=1"), FakeClock()).may_talk()


def test_without_a_limit_nothing_is_written(folder: RunFolder) -> None:
    host = Host(folder, config(), FakeClock())
    host.pace.meter = lambda: 1 << 40
    assert host.may_talk()
    assert not folder.usage_file.exists()
