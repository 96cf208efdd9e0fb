"""What Prometheus is told: some twenty series a node, whose labels are the nodes of the runs that are watched.

Peers and families are no labels: strangers could name as many as they like.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from waggle.dashboard.feed import Feed, NodeFeed, Told

_ROUND: dict[str, tuple[str, Callable[[Told], float | None]]] = {
    "waggle_round": ("Rounds played.", lambda r: r["round"]),
    "waggle_reward": ("Mean reward of the last round's own answers.", lambda r: r["reward"]),
    "waggle_own_groups": ("Own groups in the last step.", lambda r: r["own"]),
    "waggle_foreign_groups": ("Groups of peers in the last step.", lambda r: r["foreign"]),
    "waggle_peers": ("Peers that are connected.", lambda r: r["peers"]),
    "waggle_pool_groups": ("Groups of peers that wait.", lambda r: r["pool"]),
    "waggle_refused": ("Refusals in the last round.", lambda r: r["refused"]),
}
_SUMS: dict[str, tuple[str, Callable[[Told], float]]] = {
    "waggle_generated_tokens": ("Tokens drawn for training.", lambda r: r["generated"]),
    "waggle_trained_tokens": ("Tokens trained on.", lambda r: r["trained"]),
}
_TRAFFIC: dict[str, tuple[str, str, float]] = {
    "waggle_round_seconds": ("Length of the last round.", "seconds", 1.0),
    "waggle_trained_seconds": ("Seconds of training, over all starts.", "trained_s", 1.0),
    "waggle_sent_bytes": ("Bytes sent since the last start.", "sent_bytes", 1.0),
    "waggle_received_bytes": ("Bytes received since the last start.", "received_bytes", 1.0),
    "waggle_memory_bytes": ("Memory in use.", "memory_mb", 1e6),
}
_LABELS = ("run", "node")


class _Collector:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterable[Metric]:
        nodes = list(self._feed.nodes.values())
        yield GaugeMetricFamily("waggle_pages", "Pages that are open.", value=self._feed.num_watchers)
        yield _gauge("waggle_up", "Whether the node is running.", nodes, lambda n: float(n.is_running))
        last = {node.id: node.rounds[-1] for node in nodes if node.rounds}
        for name, (says, of) in _ROUND.items():
            yield _gauge(name, says, nodes, lambda n, of=of: of(last[n.id]) if n.id in last else None)  # type: ignore[misc]
        for name, (says, of_sum) in _SUMS.items():
            family = CounterMetricFamily(name, says, labels=_LABELS)
            for node in nodes:
                if node.id in last:
                    family.add_metric((node.run, node.name), of_sum(last[node.id]))
            yield family
        for name, (says, key, scale) in _TRAFFIC.items():
            yield _gauge(name, says, nodes, lambda n, k=key, s=scale: s * n.traffic[k] if n.traffic else None)  # type: ignore[misc]
        for place, name in enumerate(("waggle_heldout", "waggle_heldout_low", "waggle_heldout_high")):
            says = ("The last held-out rate.", "Its 95 % interval from here", "to here.")[place]
            yield _gauge(name, says, nodes, lambda n, i=place: _heldout(n, i))  # type: ignore[misc]


def _heldout(node: NodeFeed, place: int) -> float | None:
    found = next((one["heldout"] for one in reversed(node.rounds) if one["heldout"]), None)
    return float(found[place]) if found else None


def _gauge(name: str, says: str, nodes: Iterable[NodeFeed], of: Callable[[NodeFeed], float | None]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=_LABELS)
    for node in nodes:
        if (value := of(node)) is not None:
            family.add_metric((node.run, node.name), value)
    return family


def exposition(feed: Feed) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(feed))
    return generate_latest(registry)
