"""What a running swarm shows: a live table in a terminal, plain lines anywhere else. Tables fit 80 columns.

It only reads what the nodes have recorded, and draws at most a few times a second from a thread of rich's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waggle.node.evaluate import FamilyScore, Score
from waggle.node.node import Node
from waggle.node.round import Report
from waggle.node.status import sentence, spark


@dataclass
class Row:
    """What is shown of one node."""

    name: str
    heldout: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    round: int = 0
    foreign: int = 0
    trained: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    peers: int = 0
    says: str = "starting"


def smooth(values: Sequence[float], width: int = 5) -> float:
    """Mean of the last few values, 0 where there are none."""
    last = values[-width:]
    return sum(last) / len(last) if last else 0.0


class View:
    """The picture of a run. Use as a context manager; call `show` after every round.

    Args:
        console: where to draw.
        nodes: whom to show.
        foreign: J, for the words about sharing.
    """

    def __init__(self, console: Console, nodes: Sequence[Node], foreign: int) -> None:
        self.console = console
        self._foreign = foreign
        self.rows = {node.name: Row(f"node-{number}") for number, node in enumerate(nodes, 1)}
        self._footer = ""
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, transient=False)

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def show(self, node: Node, report: Report, footer: str) -> None:
        """Take in a finished round."""
        row = self.rows[node.name]
        row.round = report.number
        rewards = [reward for group in report.own for reward in group.rewards]
        row.rewards.append(sum(rewards) / len(rewards) if rewards else 0.0)
        row.foreign += len(report.mixed.foreign)
        row.trained += len(report.mixed.foreign) + len(report.mixed.local)
        counts = node.exchange.transport.counts
        row.sent_bytes, row.received_bytes = counts["sent_bytes"], counts["received_bytes"]
        row.peers = len(node.exchange.transport.peers())
        ahead = max(r.round for r in self.rows.values()) - row.round
        line = {
            "foreign_groups": len(report.mixed.foreign),
            "own_groups": len(report.mixed.local),
            "peers": row.peers,
            "refused": dict(report.arrived.refused),
        }
        row.says = sentence(line, self._foreign, ahead)
        if report.score:
            row.heldout.append(report.score.over().rate)
        self._footer = footer
        if not self.console.is_terminal:
            self._line(row, report)

    def _line(self, row: Row, report: Report) -> None:
        if report.score:
            by_family = ", ".join(f"{f.family} {f.rate:.2f}" for f in report.score.families)
            self.console.print(f"{row.name} round {row.round}: held-out {row.heldout[-1]:.2f} ({by_family})")
        elif row.round % 5 == 0 or row.round == 1:
            self.console.print(
                f"{row.name} round {row.round}: reward {smooth(row.rewards):.2f}, {row.says} | {self._footer}",
                highlight=False,
            )

    def _draw(self) -> Group:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for title in ("node", "round", "held-out", "trend", "reward", "peers", "foreign", "sent"):
            table.add_column(title, justify="left" if title in ("node", "trend") else "right", no_wrap=True)
        for row in self.rows.values():
            table.add_row(
                row.name,
                str(row.round),
                f"{row.heldout[-1]:.2f}" if row.heldout else "-",
                spark(row.heldout),
                f"{smooth(row.rewards):.2f} {spark(row.rewards[-6:])}",
                str(row.peers),
                f"{row.foreign / row.trained:.0%}" if row.trained else "-",
                f"{row.sent_bytes / 1000:.0f} kB",
            )
        says = [Text(f"{row.name} {row.says}", no_wrap=False, overflow="fold") for row in self.rows.values()]
        return Group(table, *says, Text(self._footer))


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


def _constant(score: FamilyScore) -> str:
    return f"{score.commonest / score.graded:.2f}" if score.graded else "-"


def shown(score: FamilyScore) -> str:
    """A rate with its interval. Example: `0.42 [0.36, 0.48]`."""
    low, high = score.interval
    return f"{score.rate:.2f} [{low:.2f}, {high:.2f}]"
