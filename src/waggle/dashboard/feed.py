"""What the page is told: lines of the nodes' files, each made small, once for everybody who watches.

One task reads all files; a page that opens gets what is kept, then what is new. Everything is bounded: what is kept of
each kind, what waits for a slow page (which is then sent away and comes back by itself), and the length of every text.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from waggle.core.codec import decode_stored
from waggle.core.errors import DecodeError, WaggleError
from waggle.core.events import Tail
from waggle.core.keys import Key, peer_name
from waggle.node.evaluate import FamilyScore, Score, wilson
from waggle.node.runfolder import RunFolder, is_locked, node_folders

LOOK_S = 0.5
ROUNDS, EVENTS, GROUPS = 600, 400, 80
"""Kept of each node."""
MAX_TEXT, MAX_ANSWERS, MAX_PEERS = 2000, 16, 256
LATE_BYTES = 4 << 20
"""Of each file, when the page is started."""
WAITING = 512
"""Messages that may wait for a page."""
_TOLD = {"quarantined", "released", "resting", "offline", "online", "unsaved", "forgot", "went-back", "goodbye-failed"}
_TRAFFIC = ("round", "seconds", "trained_s", "sent_bytes", "received_bytes", "memory_mb")
_FATE = ("round", "family", "reason", "factors", "detail", "count", "at_s")
Told = dict[str, Any]


class NodeFeed:
    """One node: what its files say, made small. `replays/alone-*` are its solo twin's."""

    def __init__(self, run: str, folder: RunFolder) -> None:
        self.run, self.folder, self.name = run, folder, folder.path.name
        self.id = f"{run}/{self.name}"
        self.rounds: deque[Told] = deque(maxlen=ROUNDS)
        self.events: deque[Told] = deque(maxlen=EVENTS)
        self.groups: deque[Told] = deque(maxlen=GROUPS)
        self.totals: dict[str, Counter[str]] = {}
        """By peer: what became of its groups, since the page looked first."""
        self.traffic: Told = {}
        self._files = [Tail(file, LATE_BYTES) for file in (folder.metrics_file, folder.events_file)]
        self._text = Tail(folder.experience_file, LATE_BYTES // 4)
        self._running: bool | None = None
        self._twin: tuple[float, Told] = 0.0, {}

    @property
    def is_running(self) -> bool:
        """Whether a process had it when the page looked last."""
        return bool(self._running)

    def head(self) -> Told:
        """Who it is and how it was started."""
        config = self.folder.config()
        key = self.folder.key_file
        return {
            "kind": "node",
            "node": self.id,
            "run": self.run,
            "name": self.name,
            "peer": peer_name(Key.load(key).id) if key.exists() else "",
            "config": config.model_dump(mode="json"),
            "before": _before(self.folder),
            "folder": str(self.folder.path),
        }

    def kept(self) -> Iterator[Told]:
        """Everything that a page needs to begin with."""
        yield self.head()
        yield from self.rounds
        yield from self.events
        yield from self.groups
        yield from (self._totals(peer) for peer in self.totals)
        if self._twin[1]:
            yield self._twin[1]
        if self.traffic:
            yield self.traffic
        yield self._state(self.is_running)

    def look(self) -> Iterator[Told]:
        """What is new."""
        metrics, events = self._files
        for line in metrics.new():
            if round_ := _small(_round, line, self.id):
                self.rounds.append(round_)
                yield round_
        for line in events.new():
            yield from self._event(line)
        for line in self._text.new():
            if group := _small(_group, line, self.id):
                self.groups.append(group)
                yield group
        if twin := self._look_at_twin():
            yield twin
        running = is_locked(self.folder.path)
        if running != self._running:
            self._running = running
            yield self._state(running)

    def _state(self, running: bool) -> Told:
        return {"kind": "state", "node": self.id, "running": running}

    def _event(self, line: Told) -> Iterator[Told]:
        name, peer = str(line.get("event")), str(line.get("peer", ""))[:80]
        if name == "round":
            self.traffic = {"kind": "traffic", "node": self.id, **{k: _number(line.get(k)) for k in _TRAFFIC}}
            yield self.traffic
        elif name in ("used", "refused", "unused") and peer:
            self._count(peer, name, line)
            told = {"kind": "event", "node": self.id, "event": name, "peer": peer}
            told |= {k: _short(line[k]) for k in _FATE if k in line}
            self.events.append(told)
            yield told
            if peer in self.totals:
                yield self._totals(peer)
        elif name in _TOLD:
            told = {"kind": "event", "node": self.id, **{str(k): _short(v) for k, v in list(line.items())[:12]}}
            self.events.append(told)
            yield told

    def _count(self, peer: str, name: str, line: Told) -> None:
        if peer not in self.totals and len(self.totals) >= MAX_PEERS:
            return
        counts = self.totals.setdefault(peer, Counter())
        reason = "used" if name == "used" else str(line.get("reason"))[:40]
        if reason in counts or len(counts) < 64:
            counts[reason] += int(_number(line.get("count", 1)))

    def _totals(self, peer: str) -> Told:
        return {"kind": "peer", "node": self.id, "peer": peer, "counts": dict(self.totals[peer])}

    def _look_at_twin(self) -> Told | None:
        """The held-out curve of the longest replay without peers, where there is one."""
        files = list(self.folder.replays.glob("alone-*/metrics.jsonl"))
        newest = max((file.stat().st_mtime for file in files), default=0.0)
        if newest <= self._twin[0]:
            return None
        curves = [[_small(_round, line, self.id) for line in Tail(file).new()] for file in files]
        points = [one for one in max(curves, key=len) if one and one["heldout"]]
        self._twin = newest, {"kind": "twin", "node": self.id, "heldout": [[p["round"], *p["heldout"]] for p in points]}
        return self._twin[1]


def _before(folder: RunFolder) -> list[float] | None:
    """The report questions before the first round: rate and interval."""
    for place in (folder.path.parent, folder.path):
        try:
            score = decode_stored(Score, (place / "before.bin").read_bytes(), 1 << 24).over()
        except (OSError, DecodeError):
            continue
        return [score.rate, *score.interval]
    return None


def _small(make: Any, line: Told, node: str) -> Told | None:
    """A line made small; none where it is damaged."""
    try:
        return make(line, node)  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _round(line: Told, node: str) -> Told:
    heldout = line.get("heldout")
    families = {str(name): [float(x) for x in cell] for name, cell in list(line["families"].items())[:64]}
    return {
        "kind": "round",
        "node": node,
        "round": int(line["round"]),
        "reward": None if line["reward"] is None else float(line["reward"]),
        "own": int(line["own_groups"]),
        "foreign": int(line["foreign_groups"]),
        "peers": int(line["peers"]),
        "pool": int(line.get("pool", 0)),
        "generated": float(line.get("generated_tokens", 0)),
        "trained": float(line.get("trained_tokens", 0)),
        "refused": sum(int(n) for n in line.get("refused", {}).values()),
        "families": families,
        "heldout": _rate(heldout) if heldout else None,
    }


def _rate(heldout: dict[str, list[float]]) -> list[float]:
    one = FamilyScore("all", int(sum(c[1] for c in heldout.values())), sum(c[0] for c in heldout.values()), 0)
    return [one.rate, *wilson(one.correct, one.graded)]


def _group(line: Told, node: str) -> Told:
    author = str(line["author"])
    return {
        "kind": "group",
        "node": node,
        "round": int(line["round"]),
        "author": peer_name(bytes.fromhex(author)),
        "env": str(line["env"])[:80],
        "fate": str(line.get("fate", ""))[:40],
        "question": str(line["question"])[:MAX_TEXT],
        "truth": str(line["truth"])[:MAX_TEXT],
        "answers": [[str(text)[:MAX_TEXT], reward] for text, reward in line["answers"][:MAX_ANSWERS]],
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k)[:40]: _number(v) for k, v in list(value.items())[:16]}
    return value if isinstance(value, int | float | bool) or value is None else str(value)[:200]


class Feed:
    """All nodes of some runs. Example: `feed = Feed([Path("runs/a")]); asyncio.create_task(feed.follow())`."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.runs = list(runs)
        self.nodes: dict[Path, NodeFeed] = {}
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        names = [run.resolve().name for run in self.runs]
        self._names = [n if names.count(n) == 1 else str(run) for n, run in zip(names, self.runs, strict=True)]

    @property
    def num_watchers(self) -> int:
        """Pages that are open."""
        return len(self._watchers)

    def look(self) -> None:
        """Take in what is new, and tell those who watch."""
        for name, run in zip(self._names, self.runs, strict=True):
            for path in _folders(run):
                if path not in self.nodes:
                    self.nodes[path] = NodeFeed(name, RunFolder(path))
                    list(self.nodes[path].look())
                    self._tell(list(self.nodes[path].kept()))
                else:
                    self._tell(list(self.nodes[path].look()))

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def _tell(self, told: list[Told]) -> None:
        if not told or not self._watchers:
            return
        message = packed(told)
        for queue in list(self._watchers):
            if queue.qsize() >= WAITING:
                self.leave(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(message)

    def watch(self) -> tuple[bytes, "asyncio.Queue[bytes | None]"]:
        """What there is now, and a queue of what comes; None in it says to come back."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watchers.add(queue)
        hello: Told = {"kind": "hello", "runs": self._names}
        return packed([hello, *(told for node in self.nodes.values() for told in node.kept())]), queue

    def leave(self, queue: "asyncio.Queue[bytes | None]") -> None:
        """Tell this one no more."""
        self._watchers.discard(queue)


def _folders(run: Path) -> list[Path]:
    """The nodes that are there by now."""
    try:
        return node_folders(run)
    except WaggleError:
        return []


def packed(told: list[Told]) -> bytes:
    """An event of the stream."""
    return b"data: " + json.dumps(told, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"
