"""What a run shows: a table in a terminal, plain lines elsewhere, the same facts in both."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.node.parts import charter_of, config
from waggle.core.events import json_line
from waggle.core.types import Family
from waggle.node.evaluate import FamilyScore, Score
from waggle.node.runfolder import RunFolder
from waggle.node.view import View, score_table, shown, smooth

SUMS = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)
SETTINGS = config("model.name=scripted", "run.minutes=2")
BEFORE = Score(0, (FamilyScore("sums", 100, 9.0, 0), FamilyScore("worked", 100, 0.0, 0)), 1)
AFTER = Score(5, (FamilyScore("sums", 100, 72.0, 0), FamilyScore("worked", 100, 80.0, 20)), 1)


def console(terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=80, soft_wrap=True)


def said(console: Console) -> str:
    """What was written, without the codes of a terminal."""
    assert isinstance(console.file, StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def folders(path: Path, num: int = 2) -> list[RunFolder]:
    made = [RunFolder.create(path / f"node-{number + 1}", SETTINGS, charter_of([SUMS])) for number in range(num)]
    for folder in made:
        folder.close()
    return made


def play_round(folder: RunFolder, number: int, **facts: object) -> None:
    """Write what a round of a node writes."""
    line = {"round": number, "reward": 0.5, "own_groups": 3, "foreign_groups": 3, "peers": 1, "refused": {}}
    line |= {"heldout": {"chain_sum": [3, 10]}} if number % 4 == 0 else {}
    event = {"at_s": 5.0 * number, "event": "round", "seconds": 5.0, "trained_s": 5.0 * number}
    event |= {"sent_bytes": 1000 * number, "received_bytes": 0}
    for file, record in ((folder.metrics_file, line | facts), (folder.events_file, event)):
        with open(file, "a") as lines:
            lines.write(json_line(record))


def played(path: Path, screen: Console, rounds: int = 6) -> str:
    """The screen of a small swarm."""
    made = folders(path)
    with View(screen, made, SETTINGS) as view:
        for number in range(1, rounds + 1):
            for folder in made:
                play_round(folder, number)
            view.look()
    return said(screen)


def test_outside_of_a_terminal_there_are_plain_lines(tmp_path: Path) -> None:
    text = played(tmp_path, console(terminal=False))
    lines = text.splitlines()
    assert "\x1b" not in text
    assert all(line.startswith(("node-1 round ", "node-2 round ")) for line in lines)
    told = [tuple(int(n) for n in re.findall(r"^node-(\d) round (\d+):", line)[0]) for line in lines]
    assert sorted(told) == [(1, 1), (1, 4), (1, 5), (2, 1), (2, 4), (2, 5)]
    assert sum("held-out 0.30 (chain_sum 0.30)" in line for line in lines) == 2
    assert lines[-1].endswith(
        "reward 0.50, sharing with 1 peer, 3 of 6 groups foreign | "
        "0.4 min of training, 1.6 min left, 5.0 s a round; Ctrl-C ends cleanly"
    )


def test_in_a_terminal_there_is_a_table(tmp_path: Path) -> None:
    text = played(tmp_path, console(terminal=True))
    for title in ("node", "round", "held-out", "trend", "reward", "peers", "foreign", "sent"):
        assert title in text
    last = text.rpartition("sent")[2]
    assert re.search(r"node-1 +6 +0\.30 .* 1 +50% +6 kB", last)
    assert re.search(r"node-2 sharing with 1 peer, 3 of 6 groups foreign", last)
    assert "…" not in last
    assert "Ctrl-C ends cleanly" in text


def test_before_the_first_round_a_table_can_be_drawn(tmp_path: Path) -> None:
    screen = console(terminal=True)
    with View(screen, folders(tmp_path), SETTINGS):
        pass
    assert "has not played a round yet" in said(screen)


def test_what_was_before_this_start_counts_and_is_not_told_again(tmp_path: Path) -> None:
    screen = console(terminal=False)
    (folder,) = folders(tmp_path, 1)
    play_round(folder, 4)
    with View(screen, [folder], SETTINGS) as view:
        view.look()
        play_round(folder, 5)
        view.look()
    assert said(screen).startswith("node-1 round 5: ")
    assert view.watches[0].status.trained == 12


def test_the_slowest_is_told_how_far_it_is_behind(tmp_path: Path) -> None:
    screen = console(terminal=True)
    fast, slow = folders(tmp_path)
    with View(screen, [fast, slow], SETTINGS) as view:
        play_round(fast, 30)
        view.look()
        play_round(slow, 5)
        view.look()
    assert "node-2 sharing with 1 peer, 3 of 6 groups foreign; 25 rounds behind the fastest" in said(screen)


def test_a_long_sentence_is_folded_and_not_cut(tmp_path: Path) -> None:
    screen = console(terminal=True)
    view = View(screen, folders(tmp_path, 1), SETTINGS)
    view.watches[
        0
    ].status.sentence = "sharing with 12 peers, 6 of 10 groups foreign; 10 rounds behind the fastest of all"
    with view:
        pass
    assert "fastest of all" in " ".join(said(screen).split())


def test_a_terminal_is_given_back_after_an_error(tmp_path: Path) -> None:
    view = View(console(terminal=True), folders(tmp_path, 1), SETTINGS)
    with pytest.raises(KeyError), view:
        raise KeyError
    assert not view._live.is_started


def test_the_last_table_shows_before_and_after_with_intervals() -> None:
    screen = console(terminal=False)
    screen.print(score_table(BEFORE, [("node-1", AFTER)], ["sums"]))
    text = said(screen)
    assert "short answers" in text
    assert text.count("0.09 [0.05, 0.16]") == 2  # once over the short answers, once by family
    assert text.count("0.72 [0.63, 0.80]") == 2
    assert "1.00 [0.95, 1.00]" in text  # of the 80 that could be graded


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (FamilyScore("x", 100, 42.0, 0), "0.42 [0.33, 0.52]"),
        (FamilyScore("x", 0, 0.0, 0), "0.00 [0.00, 1.00]"),
        (FamilyScore("x", 5, 0.0, 5), "0.00 [0.00, 1.00]"),
    ],
)
def test_a_rate_is_shown_with_its_interval(score: FamilyScore, text: str) -> None:
    assert shown(score) == text


def test_means_are_over_the_last_few() -> None:
    assert smooth([]) == 0
    assert smooth([9.0, 1, 1, 1, 1, 1]) == 1
    assert smooth([1.0, 2.0]) == 1.5
