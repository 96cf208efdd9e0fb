"""A run in words, from its files alone: whatever state or damage they are in."""

import os
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config
from waggle.core.errors import RunError
from waggle.core.events import json_line
from waggle.core.types import Family
from waggle.node.runfolder import RunFolder
from waggle.node.status import STALLED_S, NodeStatus, _problems, age, newest_run, rate, read_status, sentence, spark

LINE = {"round": 1, "reward": 0.25, "own_groups": 4, "foreign_groups": 2, "peers": 3, "refused": {}}


def made(path: Path, *lines: str) -> RunFolder:
    """A node's folder with these metrics lines; it stays locked."""
    charter = charter_of([Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)])
    folder = RunFolder.create(path, config("model.name=scripted"), charter)
    folder.metrics_file.write_text("".join(lines))
    return folder


def status_of(folder: RunFolder) -> NodeStatus:
    (status,) = read_status(folder.path)
    return status


@pytest.mark.parametrize(
    ("line", "foreign", "behind", "says"),
    [
        ({}, 2, 0, "sharing with 3 peers, 2 of 6 groups foreign"),
        ({"peers": 1}, 2, 9, "sharing with 1 peer, 2 of 6 groups foreign"),
        ({"peers": 0}, 2, 0, "sharing from the pool, no peer reachable, 2 of 6 groups foreign"),
        ({"foreign_groups": 0, "peers": 0}, 2, 0, "no peer reachable, training alone and trying again"),
        ({"foreign_groups": 0}, 2, 0, "nothing new from 3 peers, training on own answers"),
        ({"foreign_groups": 0}, 0, 0, "training alone, as configured"),
        (
            {"foreign_groups": 0},
            2,
            20,
            "nothing new from 3 peers, training on own answers; 20 rounds behind the fastest",
        ),
        (
            {"refused": {"copy": 2, "stale": 1}},
            2,
            0,
            "sharing with 3 peers, 2 of 6 groups foreign; refused 3 (copy, stale)",
        ),
    ],
)
def test_what_happened_is_said(line: dict[str, object], foreign: int, behind: int, says: str) -> None:
    assert sentence({**LINE, **line}, foreign, behind=behind) == says


def test_a_node_that_only_gives_says_so() -> None:
    assert sentence({**LINE, "foreign_groups": 0}, 0, gives=True) == "giving to 3 peers"
    alone = sentence({**LINE, "foreign_groups": 0, "peers": 0}, 0, gives=True)
    assert alone == "no peer reachable, answering and trying again"


def test_a_node_that_runs_and_one_that_was_killed(tmp_path: Path) -> None:
    lines = [json_line({**LINE, "round": n, "heldout": {"a": [n, 10], "b": [0, 10]}}) for n in (1, 2)]
    folder = made(tmp_path / "run", *lines)
    status = status_of(folder)
    assert (status.state, status.round, status.heldout) == ("running", 2, [(1, 0.05), (2, 0.1)])
    folder.journals.mkdir()
    (folder.journals / "round_000000.log").write_bytes(b"")
    folder.close()
    assert status_of(folder).state == "ended"
    (folder.journals / "round_000000.log").write_bytes(b"rounds")
    assert status_of(folder).state == "stopped"


def test_a_node_that_has_not_played(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    folder.metrics_file.unlink()
    assert status_of(folder).sentence == "has not played a round yet"
    assert age(status_of(folder)) == "never"
    folder.close()
    assert status_of(folder).state == "stopped"


def test_refusals_and_failures_are_summed(tmp_path: Path) -> None:
    lines = [json_line({**LINE, "round": n, "refused": {"copy": n}}) for n in (1, 2)]
    folder = made(tmp_path / "run", *lines)
    folder.events_file.write_text(
        json_line({"at_s": 5.0, "event": "unreachable"}) * 2 + json_line({"at_s": 9.5, "event": "round"})
    )
    status = status_of(folder)
    assert (status.counts, status.last_s) == ({"copy": 3, "unreachable": 2}, 9.5)
    folder.close()


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]\n",
        "{}\n",
        '{"round":"x"}\n',
        '{"round":3}\n',
        json_line({**LINE, "round": 9, "refused": [1]}),
        json_line({**LINE, "round": 9, "heldout": {"a": [1]}}),
        json_line({**LINE, "round": 9, "heldout": 5}),
        "\x00\x00\n",
    ],
)
def test_a_damaged_line_tells_nothing_and_hides_nothing(tmp_path: Path, damage: str) -> None:
    folder = made(tmp_path / "run", json_line(LINE), damage)
    folder.events_file.write_text('{"at_s":"late","event":"round"}\n' + damage)
    status = status_of(folder)
    assert (status.round, status.reward, status.last_s) == (1, 0.25, None)
    folder.close()


def test_the_newest_run_is_the_one_that_was_started_last(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run in .*; `waggle swarm` starts one"):
        newest_run(tmp_path)
    for number, name in enumerate(("b", "c", "a")):
        made(tmp_path / name).close()
        os.utime(tmp_path / name / "run.json", (number, number))
    (tmp_path / "z").mkdir()
    assert newest_run(tmp_path) == tmp_path / "a"


def test_rates_and_trends() -> None:
    assert rate({"a": [3, 10], "b": [1, 10]}) == 0.2
    assert rate({}) == rate({"a": [0, 0]}) == 0
    assert spark([0.1, 0.5, 1.0]) == "▁▄█"
    assert spark([]) == ""
    assert len(spark([0.5] * 100)) == 16
    assert spark([-1.0, 2.0]) == "▁█"


def health(folder: RunFolder, now_s: float = 1000.0, free_bytes: int = 1 << 40) -> list[str]:
    return list(_problems(status_of(folder), folder, now_s, free_bytes))


def wrote(folder: RunFolder, *events: dict[str, object]) -> None:
    os.utime(folder.path / "lock", (900, 900))
    folder.events_file.write_text("".join(json_line({"at_s": 1000.0, **event}) for event in events))


ROUND = {"event": "round", "seconds": 5.0, "trained_s": 5.0, "sent_bytes": 1, "received_bytes": 2}


def test_a_healthy_node_has_no_problems(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", json_line(LINE))
    wrote(folder, ROUND)
    assert health(folder) == []
    folder.close()
    assert status_of(folder).problems == []


def test_a_node_that_writes_nothing_is_stalled_unless_it_rests_or_its_rounds_are_long(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", json_line(LINE))
    wrote(folder, ROUND)
    assert health(folder, 1000 + STALLED_S + 60) == ["nothing was written for 11 minutes"]
    wrote(folder, {**ROUND, "seconds": 1000.0})
    assert health(folder, 1000 + STALLED_S + 60) == []
    wrote(folder, ROUND, {"event": "resting", "why": "paused"})
    assert health(folder, 1000 + 9 * STALLED_S) == []
    wrote(folder, ROUND, {"event": "resting", "why": "paused"}, ROUND)
    assert health(folder, 1000 + 9 * STALLED_S) != []
    folder.close()


def test_a_node_that_was_started_a_moment_ago_is_not_stalled(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", json_line(LINE))
    wrote(folder, ROUND)
    assert health(folder, 1000 + 3 * 24 * 3600) != []
    os.utime(folder.path / "lock", (1000 + 3 * 24 * 3600 - 20,) * 2)
    assert health(folder, 1000 + 3 * 24 * 3600) == []
    folder.close()


def test_a_full_disk_is_a_problem_and_rounds_that_wait_for_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", json_line(LINE))
    wrote(folder, ROUND, {"event": "unsaved", "why": "cannot write x"})
    assert health(folder, free_bytes=5_000_000) == [
        "the disk is full: 5 MB are free",
        "rounds wait in memory: cannot write x",
    ]
    folder.close()


@pytest.mark.parametrize(("known", "alone", "problem"), [("", 20, False), ("x@y\n", 9, False), ("x@y\n", 10, True)])
def test_a_node_that_was_invited_and_meets_nobody_is_not_healthy(
    tmp_path: Path, known: str, alone: int, problem: bool
) -> None:
    lines = [json_line({**LINE, "round": n, "foreign_groups": 0, "peers": 0}) for n in range(2, alone + 2)]
    folder = made(tmp_path / "run", json_line(LINE), *lines)
    folder.bootstrap_file.write_text(known)
    wrote(folder, ROUND)
    assert bool(health(folder)) is problem
    wrote(folder, ROUND, {"event": "offline", "why": "the bytes of the day are used up"})
    assert health(folder) == []
    folder.close()


def test_a_killed_node_is_not_healthy_and_one_that_ended_is(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", json_line(LINE))
    folder.close()
    folder.journals.mkdir()
    assert status_of(folder).problems == []
    (folder.journals / "round_000000.log").write_bytes(b"rounds")
    assert status_of(folder).problems == ["it was killed, or stopped before its first round"]
