"""What a run shows: a table in a terminal, plain lines elsewhere, the same facts in both."""

import asyncio
import re
from io import StringIO

import pytest
from rich.console import Console

from tests.node.parts import config, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.node.evaluate import FamilyScore, Score
from waggle.node.node import Node
from waggle.node.round import Report
from waggle.node.swarm import Turns, connect, play_turns
from waggle.node.view import View, score_table, shown, smooth
from waggle.tasks.families import family

SUMS = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)
BEFORE = Score(0, (FamilyScore("sums", 100, 9.0, 0), FamilyScore("worked", 100, 0.0, 0)), 1)
AFTER = Score(5, (FamilyScore("sums", 100, 72.0, 0), FamilyScore("worked", 100, 80.0, 20)), 1)


def console(terminal: bool) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=80, soft_wrap=True)


def said(console: Console) -> str:
    """What was written, without the codes of a terminal."""
    assert isinstance(console.file, StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def played(screen: Console, rounds: int = 6) -> str:
    """The screen of a small swarm."""
    clock = FakeClock()
    settings = config("model.name=scripted", "eval.every=4", "round.local=3", "round.foreign=3")
    nodes = scripted_swarm((SUMS,), 2, settings, clock=clock)

    async def story() -> None:
        await connect(nodes)
        with View(screen, nodes, 3) as view:

            def on_round(node: Node, report: Report) -> None:
                view.show(node, report, "0.1 min of training; Ctrl-C ends cleanly")

            await play_turns(Turns(nodes, 0), lambda: False, rounds, on_round)

    asyncio.run(story())
    return said(screen)


def test_outside_of_a_terminal_there_are_plain_lines() -> None:
    text = played(console(terminal=False))
    lines = text.splitlines()
    assert "\x1b" not in text
    assert all(line.startswith(("node-1 round ", "node-2 round ")) for line in lines)
    told = [tuple(int(n) for n in re.findall(r"^node-(\d) round (\d+):", line)[0]) for line in lines]
    assert sorted(told) == [(1, 1), (1, 4), (1, 5), (2, 1), (2, 4), (2, 5)]
    assert sum("held-out 0." in line and "(chain_sum 0." in line for line in lines) == 2
    assert re.search(r"sharing with 1 peer, \d of \d groups foreign \| 0\.1 min of training; Ctrl-C", lines[-1])


def test_in_a_terminal_there_is_a_table() -> None:
    text = played(console(terminal=True))
    for title in ("node", "round", "held-out", "trend", "reward", "peers", "foreign", "sent"):
        assert title in text
    last = text.rpartition("sent")[2]
    assert re.search(r"node-1 +6 .* 1 +\d\d% +\d+ kB", last)
    assert re.search(r"node-2 sharing with 1 peer, \d of \d groups foreign", last)
    assert "…" not in last
    assert "Ctrl-C ends cleanly" in text


def test_before_the_first_round_a_table_can_be_drawn() -> None:
    screen = console(terminal=True)
    nodes = scripted_swarm((SUMS,), 2, config("model.name=scripted"))
    with View(screen, nodes, 3):
        pass
    assert "starting" in said(screen)


def test_a_long_sentence_is_folded_and_not_cut() -> None:
    screen = console(terminal=True)
    view = View(screen, scripted_swarm((SUMS,), 1, config("model.name=scripted")), 3)
    for row in view.rows.values():
        row.says = "sharing with 12 peers, 6 of 10 groups foreign; 10 rounds behind the fastest of them all"
    with view:
        pass
    assert "of them all" in " ".join(said(screen).split())


def test_a_terminal_is_given_back_after_an_error() -> None:
    screen = console(terminal=True)
    view = View(screen, scripted_swarm((SUMS,), 1, config("model.name=scripted")), 3)
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
