"""Why foreign experience was used or not: told as it happens, summed up afterwards.

Every foreign group ends in one of these: refused on arrival (event `refused`), used (`used`, with the factors of its
weight), or gone unused from the pool (`unused`: too old, or crowded out). What still waits has no line yet.
`summary` adds them up by peer from a node's events, which rotate: it speaks of what they still hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from waggle.core.events import read_lines
from waggle.core.keys import peer_name
from waggle.node.node import Node
from waggle.node.runfolder import RunFolder
from waggle.swarm.sampling import Mixed


def tell(node: Node, number: int, mixed: Mixed) -> None:
    """Say of this round's foreign groups which were used and why, and which left the pool unused."""
    decisions = {decision.id: decision for decision in mixed.decisions}
    for group in mixed.foreign:
        decision = decisions[group.id]
        node.events.emit(
            "used",
            round=number,
            peer=peer_name(group.author),
            group=group.id.hex()[:12],
            family=node.taskset.family(group.task.ref).label,
            reason=decision.reason,
            factors=decision.factors,
        )
    left = Counter((peer_name(author), reason) for author, reason in node.pool.take_left())
    for (peer, reason), count in sorted(left.items()):
        node.events.emit("unused", round=number, peer=peer, reason=reason, count=count)


class PeerSummary(NamedTuple):
    """What became of one peer's groups."""

    peer: str
    used: int
    factors: dict[str, float]
    """Means over the used ones."""
    not_used: dict[str, int]
    """By reason: refused on arrival, or gone unused."""


def summary(folder: RunFolder) -> list[PeerSummary]:
    """What became of foreign groups, the most used peers first."""
    used: Counter[str] = Counter()
    factors: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for line in read_lines(folder.events_file):
        peer, event = str(line.get("peer", "")), line.get("event")
        if event == "used":
            used[peer] += 1
            factors.setdefault(peer, Counter()).update(_numbers(line.get("factors")))
        elif event in ("refused", "unused"):
            reasons.setdefault(peer, Counter())[str(line.get("reason"))] += int(line.get("count", 1))
    peers = sorted(set(used) | set(reasons), key=lambda peer: (-used[peer], peer))
    return [
        PeerSummary(peer, used[peer], _means(factors.get(peer, {}), used[peer]), dict(reasons.get(peer, {})))
        for peer in peers
    ]


def _numbers(factors: Any) -> dict[str, float]:
    return {name: float(value) for name, value in factors.items()} if isinstance(factors, dict) else {}


def _means(sums: Mapping[str, float], count: int) -> dict[str, float]:
    return {name: value / count for name, value in sums.items()} if count else {}


def lines_of(found: Iterable[PeerSummary]) -> list[tuple[str, str, str, str]]:
    """Rows of a table: peer, used, why not, factors."""
    return [
        (
            one.peer,
            str(one.used),
            ", ".join(f"{reason} {count}" for reason, count in sorted(one.not_used.items())) or "-",
            ", ".join(f"{name} {value:.2f}" for name, value in one.factors.items()) or "-",
        )
        for one in found
    ]
