"""What a run is doing, in words, from the files it writes: nothing here talks to a running node."""

import shutil
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waggle.core.errors import RunError
from waggle.core.events import Tail
from waggle.node.runfolder import RunFolder, is_locked, node_folders

_BARS = "▁▂▃▄▅▆▇█"
_TREND = 16
STALLED_S, STALLED_ROUNDS = 600.0, 3.0
"""A running node that writes nothing for so long, in seconds and in rounds of its own, is stalled."""
LEAST_FREE_BYTES = 64_000_000
ALONE_ROUNDS = 10
LATE_BYTES = 8 << 20
"""Of events.jsonl, enough to know what a node is doing now."""
_NOTED = ("resting", "offline", "unsaved")


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
    counts: Counter[str] = field(default_factory=Counter)
    """Refusals by reason, and failures to reach peers."""
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=_TREND))
    """The mean rewards of the last rounds, newest last."""
    peers: int = 0
    trained: int = 0
    """Groups trained on."""
    foreign: int = 0
    """Those of peers."""
    sent_bytes: int = 0
    received_bytes: int = 0
    """Since the node started last."""
    trained_s: float = 0.0
    """Seconds of training, over all starts."""
    round_s: float = 0.0
    """Length of the last round."""
    notes: dict[str, str] = field(default_factory=dict)
    """What keeps it from playing, talking or storing now."""

    rounds_alone: int = 0
    """The last rounds without a peer, in a row."""
    problems: list[str] = field(default_factory=list)
    """What keeps it from being healthy, a sentence each."""

    @property
    def says(self) -> str:
        """What it is doing, in one sentence."""
        return "; ".join((*(f"{what}: {why}" for what, why in self.notes.items()), self.sentence))


class Watch:
    """One node, followed by the files it writes. Example: `watch = Watch(folder); watch.look()`.

    Args:
        folder: its run folder.
        foreign: J, where it is known already.
    """

    def __init__(self, folder: RunFolder, foreign: int | None = None) -> None:
        self.status = NodeStatus(folder.path.name, folder.path, "running")
        config = folder.config()
        self._foreign = config.round.foreign if foreign is None else foreign
        self._gives = config.model.gives
        self._metrics, self._events = Tail(folder.metrics_file), Tail(folder.events_file, LATE_BYTES)

    def look(self, ahead: int = 0) -> list[dict[str, Any]]:
        """Take in what is new; the lines of new rounds, those that are damaged left out.

        Args:
            ahead: the round of the fastest node known.
        """
        lines = []
        for line in self._metrics.new():
            with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):  # a damaged line tells nothing
                _take(self.status, line, self._foreign, self._gives, ahead)
                lines.append(line)
        for event in self._events.new():
            with suppress(KeyError, TypeError, ValueError):
                _take_event(self.status, event)
        return lines


def sentence(line: dict[str, Any], foreign: int, gives: bool = False, behind: int = 0) -> str:
    """What happened in a round, for people.

    Args:
        line: the round's line of metrics.jsonl.
        foreign: J, the groups of peers that a round asks for.
        gives: whether the node only gives.
        behind: rounds that the fastest peer known is ahead.
    """
    refused = sum(line.get("refused", {}).values())
    tail = f"; refused {refused} ({', '.join(line['refused'])})" if refused else ""
    if behind >= 10:
        tail += f"; {behind} rounds behind the fastest"
    used, peers = line["foreign_groups"], line["peers"]
    whom = f"{peers} peers" if peers != 1 else "1 peer"
    if gives:
        return (f"giving to {whom}" if peers else "no peer reachable, answering and trying again") + tail
    if foreign == 0:
        return "training alone, as configured" + tail
    if not used and not peers:
        return "no peer reachable, training alone and trying again" + tail
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
    watch = Watch(folder)
    watch.look()
    status = watch.status
    if not is_locked(folder.path):
        status.state = "stopped" if not status.round or _unsaved(folder) else "ended"
    status.problems = list(_problems(status, folder, time.time(), shutil.disk_usage(folder.path).free))
    return status


def _problems(status: NodeStatus, folder: RunFolder, now_s: float, free_bytes: int) -> Iterator[str]:
    """What an operator would want to be woken for."""
    if status.state == "stopped":
        yield "it was killed, or stopped before its first round"
    if status.state != "running":
        return
    patience_s = max(STALLED_S, STALLED_ROUNDS * status.round_s)
    lock = folder.path / "lock"
    silent_s = now_s - max(status.last_s or 0.0, lock.stat().st_mtime if lock.exists() else 0.0)
    if "resting" not in status.notes and silent_s > patience_s:
        yield f"nothing was written for {silent_s / 60:.0f} minutes"
    if free_bytes < LEAST_FREE_BYTES:
        yield f"the disk is full: {free_bytes / 1e6:.0f} MB are free"
    if "unsaved" in status.notes:
        yield f"rounds wait in memory: {status.notes['unsaved']}"
    knows_somebody = folder.bootstrap_file.exists() and folder.bootstrap_file.stat().st_size > 0
    if knows_somebody and status.rounds_alone >= ALONE_ROUNDS and "offline" not in status.notes:
        yield f"no peer was reachable for {status.rounds_alone} rounds; `waggle doctor --reach {folder.path}` looks why"


def _take(status: NodeStatus, line: dict[str, Any], foreign: int, gives: bool, ahead: int) -> None:
    """Add a round's line."""
    number = int(line["round"])
    told = sentence(line, foreign, gives, ahead - number)
    heldout = [(number, rate(line["heldout"]))] if "heldout" in line else []
    reward = None if line["reward"] is None else float(line["reward"])
    used, own, peers = int(line["foreign_groups"]), int(line["own_groups"]), int(line["peers"])
    status.round, status.reward, status.sentence, status.peers = number, reward, told, peers
    status.rounds_alone = 0 if peers or not (foreign or gives) else status.rounds_alone + 1
    status.heldout += heldout
    status.rewards.append(reward or 0.0)
    status.foreign += used
    status.trained += used + own
    for reason, count in line.get("refused", {}).items():
        status.counts[reason] += int(count)


def _take_event(status: NodeStatus, event: dict[str, Any]) -> None:
    at_s = event.get("at_s")
    status.last_s = at_s if isinstance(at_s, int | float) else status.last_s
    if event["event"] == "unreachable":
        status.counts["unreachable"] += 1
    elif event["event"] in _NOTED:
        status.notes[event["event"]] = str(event["why"])
    elif event["event"] == "online":
        status.notes.clear()
    elif event["event"] == "round":
        status.notes.pop("resting", None)
        status.notes.pop("unsaved", None)
        status.round_s, status.trained_s = float(event["seconds"]), float(event["trained_s"])
        status.sent_bytes, status.received_bytes = int(event["sent_bytes"]), int(event["received_bytes"])


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
