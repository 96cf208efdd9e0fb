"""What a run is doing, in words, from the files it writes: nothing here talks to a running node."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waggle.core.errors import RunError
from waggle.core.events import read_lines
from waggle.node.runfolder import RunFolder, is_locked, node_folders

_BARS = "▁▂▃▄▅▆▇█"
_TREND = 16


@dataclass
class NodeStatus:
    """One node, as its folder tells."""

    name: str
    folder: Path
    state: str
    """`running`, `ended` (all that was played is in a checkpoint), or `stopped` (it was killed, or has not played)."""
    round: int = 0
    heldout: list[tuple[int, float]] = field(default_factory=list)
    """(round, pass@1) of the steering evaluations."""
    reward: float | None = None
    last_s: float | None = None
    sentence: str = "has not played a round yet"
    counts: dict[str, int] = field(default_factory=dict)
    """Refusals by reason, and failures to reach peers."""


def sentence(line: dict[str, Any], foreign: int, behind: int = 0) -> str:
    """What happened in a round, for people.

    Args:
        line: the round's line of metrics.jsonl.
        foreign: J, the groups of peers that a round asks for.
        behind: rounds that the fastest peer known is ahead.
    """
    refused = sum(line.get("refused", {}).values())
    tail = f"; refused {refused} ({', '.join(line['refused'])})" if refused else ""
    if behind >= 10:
        tail += f"; {behind} rounds behind the fastest"
    used, peers = line["foreign_groups"], line["peers"]
    if foreign == 0:
        return "training alone, as configured" + tail
    if not used and not peers:
        return "no peer reachable, training alone and trying again" + tail
    whom = f"{peers} peers" if peers != 1 else "1 peer"
    if not used:
        return f"nothing new from {whom}, training on own answers" + tail
    source = f"with {whom}" if peers else "from the pool, no peer reachable"
    return f"sharing {source}, {used} of {used + line['own_groups']} groups foreign" + tail


def newest_run(runs: Path) -> Path:
    """The run that was started last.

    Raises:
        RunError: there is none.
    """
    started = {file.parent: file.stat().st_mtime for file in runs.glob("*/run.json")}
    if not started:
        raise RunError(f"there is no run in {runs.resolve()}; `waggle swarm` starts one, or name a run folder")
    return max(started, key=lambda path: (started[path], path.name))


def read_status(path: Path) -> list[NodeStatus]:
    """The nodes of a run folder.

    Raises:
        RunError: it is no run folder.
    """
    return [_read_node(RunFolder(folder)) for folder in node_folders(path)]


def _read_node(folder: RunFolder) -> NodeStatus:
    foreign = folder.config().round.foreign
    status = NodeStatus(folder.path.name, folder.path, "running")
    for line in read_lines(folder.metrics_file):
        with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):  # a damaged line tells nothing
            _take(status, line, foreign)
    for event in read_lines(folder.events_file):
        at_s = event.get("at_s")
        status.last_s = at_s if isinstance(at_s, int | float) else status.last_s
        if event.get("event") == "unreachable":
            status.counts["unreachable"] = status.counts.get("unreachable", 0) + 1
    if not is_locked(folder.path):
        status.state = "stopped" if not status.round or _unsaved(folder) else "ended"
    return status


def _take(status: NodeStatus, line: dict[str, Any], foreign: int) -> None:
    """Add a round's line."""
    number, told = int(line["round"]), sentence(line, foreign)
    heldout = [(number, rate(line["heldout"]))] if "heldout" in line else []
    reward = None if line["reward"] is None else float(line["reward"])
    status.round, status.reward, status.sentence = number, reward, told
    status.heldout += heldout
    for reason, count in line.get("refused", {}).items():
        status.counts[reason] = status.counts.get(reason, 0) + int(count)


def _unsaved(folder: RunFolder) -> bool:
    """Whether there are rounds since the newest checkpoint, which only a killed node leaves."""
    journals = sorted(folder.journals.glob("round_*.log"))
    return bool(journals) and journals[-1].stat().st_size > 0


def rate(heldout: dict[str, Sequence[float]]) -> float:
    """pass@1 over all families of one evaluation's line."""
    asked = sum(cell[1] for cell in heldout.values())
    return sum(cell[0] for cell in heldout.values()) / asked if asked else 0.0


def spark(values: Sequence[float]) -> str:
    """A trend in one line of blocks, from 0 to 1. Example: `spark([0.1, 0.5, 1.0])` is `▁▄█`."""
    return "".join(_BARS[max(1, min(8, round(8 * value))) - 1] for value in values[-_TREND:])


def age(status: NodeStatus) -> str:
    """How long ago the node last wrote something."""
    if status.last_s is None:
        return "never"
    seconds = max(0, int(time.time() - status.last_s))
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
