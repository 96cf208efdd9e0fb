"""On what terms two nodes become neighbours: one swarm, a version that both speak, and membership where that counts.

`Hello` and `Welcome` keep their form in every version, so that nodes of two versions can tell each other why they part.
"""

from collections.abc import Callable
from typing import NamedTuple

from waggle.net.frames import PROTOCOL, Hello
from waggle.net.wire import Link


class Terms(NamedTuple):
    """What a node asks of those whom it takes in. Example: `Terms(charter_digest).objection(peer, hello)`."""

    network: bytes = bytes(32)
    """Digest of the swarm's charter."""
    speaks: tuple[int, ...] = (PROTOCOL,)
    """Versions of the overlay, the best first."""
    admits: Callable[[bytes], bool] = lambda peer: True
    """Whether a peer may take part at all."""
    least: int = 6
    """Neighbours wanted."""
    most: int = 10
    """Neighbours that are not exceeded."""

    def version(self, speaks: tuple[int, ...]) -> int:
        """The best version that both speak, 0 where there is none."""
        return max({*speaks} & {*self.speaks}, default=0)

    def objection(self, peer: bytes, said: Hello) -> str:
        """Why a peer is not taken in, in a few words, or nothing. Room is another matter."""
        if said.network != self.network:
            return "this node is of another swarm"
        if not self.version(said.speaks):
            return f"this node speaks protocol {_listed(self.speaks)} and not {_listed(said.speaks)}"
        return "" if self.admits(peer) else "the swarm is for members only"


def keeps(link: Link, me: bytes) -> bool:
    """Of two links between two peers the one that the smaller id dialled is kept."""
    return link.dialled == (me < link.peer)


def _listed(versions: tuple[int, ...]) -> str:
    return " or ".join(str(version) for version in versions)
