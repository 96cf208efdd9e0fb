"""What a running swarm shows: a live table in a terminal, plain lines anywhere else. Tables fit 80 columns.

It reads what the nodes write into their run folders, so it shows nodes of other processes as well as its own.
"""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waggle.core.config import Config
from waggle.node.comparison import Comparison
from waggle.node.evaluate import FamilyScore, Outcome, Score, scores
from waggle.node.runfolder import RunFolder
from waggle.node.status import NodeStatus, Watch, spark


def smooth(values: Sequence[float], width: int = 5) -> float:
    """Mean of the last few values, 0 where there are none."""
    last = values[-width:]
    return sum(last) / len(last) if last else 0.0


class View:
    """The picture of a run. Use as a context manager; call `look` now and then.

    Args:
        console: where to draw.
        folders: whom to show.
        config: of the run.
    """

    def __init__(self, console: Console, folders: Sequence[RunFolder], config: Config) -> None:
        self.console = console
        self.watches = [Watch(folder, config.round.foreign) for folder in folders]
        for watch in self.watches:
            watch.look()  # what was before this start is not told again
        self._limit_s = 60 * config.run.minutes
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=False)

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def look(self) -> None:
        """Take in what is new, and tell it where there is no table."""
        ahead = max(watch.status.round for watch in self.watches)
        for watch in self.watches:
            for line in watch.look(ahead):
                if not self.console.is_terminal:
                    self._line(watch.status, line)

    def _line(self, status: NodeStatus, line: dict[str, Any]) -> None:
        if "heldout" in line:
            cells = line["heldout"].items()
            by_family = ", ".join(f"{family} {cell[0] / cell[1] if cell[1] else 0:.2f}" for family, cell in cells)
            self.console.print(
                f"{status.name} round {line['round']}: held-out {status.heldout[-1][1]:.2f} ({by_family})"
            )
        elif line["round"] % 5 == 0 or line["round"] == 1:
            reward = smooth(tuple(status.rewards))
            self.console.print(
                f"{status.name} round {line['round']}: reward {reward:.2f}, {status.says} | {self._footer()}",
                highlight=False,
            )

    def _footer(self) -> str:
        played = max(watch.status.trained_s for watch in self.watches)
        left = f", {max(0.0, self._limit_s - played) / 60:.1f} min left" if self._limit_s else ""
        longest = max(watch.status.round_s for watch in self.watches)
        return f"{played / 60:.1f} min of training{left}, {longest:.1f} s a round; Ctrl-C ends cleanly"

    def _draw(self) -> Group:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for title in ("node", "round", "held-out", "trend", "reward", "peers", "foreign", "sent"):
            table.add_column(title, justify="left" if title in ("node", "trend") else "right", no_wrap=True)
        shown = [watch.status for watch in self.watches]
        for status in shown:
            rates, rewards = [rate for _, rate in status.heldout], tuple(status.rewards)
            table.add_row(
                status.name,
                str(status.round),
                f"{rates[-1]:.2f}" if rates else "-",
                spark(rates),
                f"{smooth(rewards):.2f} {spark(rewards[-6:])}",
                str(status.peers),
                f"{status.foreign / status.trained:.0%}" if status.trained else "-",
                f"{status.sent_bytes / 1000:.0f} kB",
            )
        says = [Text(f"{status.name} {status.says}", no_wrap=False, overflow="fold") for status in shown]
        return Group(table, *says, Text(self._footer()))


def score_table(before: Score, after: Sequence[tuple[str, Score]], short: Sequence[str]) -> Table:
    """Before and after on the report questions, with 95 % intervals, one line a node and family."""
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"own answers to {before.over().asked} held-out questions: share right, 95 % interval",
    )
    table.caption = "constant: what always giving the most frequent answer would get"
    for title in ("node", "family", "constant", "before", "after"):
        table.add_column(title, justify="left" if title in ("node", "family") else "right", no_wrap=True)
    for name, score in after:
        first, last = before.over(short), score.over(short)
        table.add_row(name, "short answers", _constant(last), shown(first), shown(last), style="bold")
        for old, new in zip(before.families, score.families, strict=True):
            table.add_row("", new.family, _constant(new), shown(old), shown(new))
        table.add_section()
    return table


def model_table(model: str, outcomes: Sequence[Outcome], answers: int) -> Table:
    """What a model can do."""
    asked = f"{answers} answers each" if answers > 1 else "one answer each"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{model}: held-out questions, {asked}, 95 % intervals")
    for title in ("family", "asked", "pass@1", *([f"pass@{answers}"] if answers > 1 else [])):
        table.add_column(title, justify="left" if title == "family" else "right", overflow="fold")
    ones, many = (Score(0, scores(outcomes, k), 0) for k in (1, answers))
    for one, best in zip((*ones.families, ones.over()), (*many.families, many.over()), strict=True):
        table.add_row(one.family, str(one.asked), shown(one), *([shown(best)] if answers > 1 else []))
    return table


def comparison_table(model: str, first: str, compared: Sequence[Comparison]) -> Table:
    """How much more than the first a model can do, on the same questions."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{model} less {first}, question by question, 95 % intervals")
    for title in ("family", "asked", "difference", "better", "worse"):
        table.add_column(title, justify="left" if title == "family" else "right", overflow="fold")
    for one in compared:
        gain = f"{one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"
        table.add_row(one.family, str(one.asked), gain, str(one.better), str(one.worse))
    return table


def probe_table(rows: dict[str, FamilyScore], bits_per_byte: float) -> Table:
    """What a model does elsewhere."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="the same questions put otherwise, and other families")
    table.caption = f"plain text: {bits_per_byte:.3f} bits a byte (less is better)"
    for title in ("what", "asked", "right"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for name, score in rows.items():
        table.add_row(name, str(score.asked), shown(score))
    return table


def _constant(score: FamilyScore) -> str:
    return f"{score.commonest / score.graded:.2f}" if score.graded else "-"


def shown(score: FamilyScore) -> str:
    """A rate with its interval. Example: `0.42 [0.36, 0.48]`."""
    low, high = score.interval
    return f"{score.rate:.2f} [{low:.2f}, {high:.2f}]"
