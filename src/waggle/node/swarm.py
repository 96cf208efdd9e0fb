"""Several nodes in one process, taking turns: every simulated swarm, and the tests of the node.

Nodes do not wait for each other: each has a seeded speed of its own, and the next turn is always that of the
node whose next round would end first on its own time. Turns follow from the rounds played and the speeds alone,
so a swarm that is stopped at any instant goes on in the same order, and equal seeds give equal runs.
"""

import heapq
from collections.abc import Awaitable, Callable, Sequence

from waggle.core.errors import NetworkError
from waggle.core.rng import rng_for
from waggle.core.types import Peer
from waggle.node.node import Node
from waggle.node.round import Report, play

SPREAD = 1.5
"""The fastest node may play this many times the rounds of the slowest."""

OnRound = Callable[[Node, Report], Awaitable[None] | None]


def speed(seed: int, number: int) -> float:
    """Rounds that node `number` plays in the time of one; between 1 and `SPREAD`."""
    return float(SPREAD ** rng_for(seed, "speed", number).random())


class Turns:
    """Whose turn it is. Example: `Turns(nodes, seed=0).next()`.

    Args:
        nodes: who plays.
        seed: of the speeds, where none are given.
        speeds: rounds per unit of time of each node.
    """

    def __init__(self, nodes: Sequence[Node], seed: int, speeds: Sequence[float] = ()) -> None:
        self._nodes = list(nodes)
        self._speeds = list(speeds) or [speed(seed, number) for number in range(len(nodes))]
        self._waiting: list[tuple[float, int]] = []
        """When each one's next round ends; where it has played since, the time is too early and put right when met."""
        self._rounds = -1

    def next(self, rounds: int = 0) -> Node | None:
        """The node that plays next; None where all have played `rounds` (0: no such limit)."""
        if rounds != self._rounds:
            self._rounds, self._waiting = rounds, [(self._ends(i), i) for i in range(len(self._nodes))]
            heapq.heapify(self._waiting)
        while self._waiting:
            ends, i = self._waiting[0]
            if rounds and self._nodes[i].state.round >= rounds:
                heapq.heappop(self._waiting)
            elif ends != self._ends(i):
                heapq.heapreplace(self._waiting, (self._ends(i), i))
            else:
                return self._nodes[i]
        return None

    def _ends(self, i: int) -> float:
        return (self._nodes[i].state.round + 1) / self._speeds[i]


async def connect(nodes: Sequence[Node]) -> None:
    """Bring nodes online and have each meet those before it."""
    peers: list[Peer] = []
    for node in nodes:
        await node.start(peers)
        peers.append(Peer(node.key.id, "memory"))


async def play_turns(turns: Turns, stop: Callable[[], bool], rounds: int, on_round: OnRound) -> None:
    """Play until `stop` says so or every node has played `rounds`."""
    while not stop() and (node := turns.next(rounds)):
        report = await play(node)
        if waits := on_round(node, report):
            await waits


async def part(nodes: Sequence[Node]) -> None:
    """Checkpoint every node, then say goodbye."""
    for node in nodes:
        node.checkpoint()
    for node in nodes:
        try:
            await node.close()
        except NetworkError as error:
            node.events.emit("goodbye-failed", why=str(error))
