"""What the overlay asks of a network: authenticated links to peers, with frames and requests on them.

A link is one connection whose other end has proven its key. Frames are small messages in order, for neighbours; a
request has a stream of its own, so that a large answer holds nothing up. A wire knows nothing of topics, neighbours or
experience; `net/overlay.py` makes a `Transport` of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from waggle.core.errors import NetworkError
from waggle.core.types import Peer
from waggle.net.guard import Guard
from waggle.net.transport import MAX_BODY_BYTES

MAX_FRAME_BYTES = (1 << 20) + 4096
"""The largest frame that is read from anybody."""
MAX_REQUEST_BYTES = MAX_BODY_BYTES + 1024
"""The same with the name of its protocol."""


class Rude(NetworkError):
    """A peer did what ends its link. `reason` is a counter's name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reply(NamedTuple):
    """What came of a request: the answer, or in words why there is none."""

    fine: bool
    body: bytes


class Link(Protocol):
    """A connection to one peer. Both ends may send frames and ask."""

    peer: bytes
    dialled: bool
    """Whether this end opened it."""
    origin: str
    """The host that answers for it: where it came from or was dialled."""
    received_bytes: int
    """Of frames, so far; grows with every piece that comes, be a frame whole or not."""

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send frames in order; waits while the peer does not read.

        Raises:
            NetworkError: the link is gone.
        """
        ...

    async def receive(self) -> bytes:
        """The next frame.

        Raises:
            NetworkError: the link is gone, or the peer sent what is no frame.
        """
        ...

    async def ask(self, body: bytes, max_reply_bytes: int) -> Reply:
        """Send a request and wait for the whole answer.

        Raises:
            NetworkError: the link is gone, or the answer is larger than that.
        """
        ...

    def close(self, why: str) -> None:
        """End the link at once; the peer is told why, in a few words."""
        ...


OnLink = Callable[[Link], None]
OnRequest = Callable[[bytes, bytes], Awaitable[Reply]]
"""(caller, body) -> reply. Raises nothing but `Rude`, where the caller is to be cut off."""


class Wire(Protocol):
    """One node's end of a network."""

    guard: Guard
    """Who may come in; what is counted there is counted with the rest."""

    async def open(self, on_link: OnLink, on_request: OnRequest) -> str:
        """Go online. Returns where this node can be reached, as `Peer.address` has it.

        Raises:
            NetworkError: it cannot, e.g. the port is taken.
        """
        ...

    async def dial(self, peer: Peer) -> Link:
        """Connect to a peer. The caller sets the deadline.

        Raises:
            NetworkError: nobody there, or somebody else.
        """
        ...

    def address(self) -> str:
        """Where this node can be reached now: a machine may move from network to network."""
        ...

    def host_of(self, peer: bytes) -> str:
        """From which host a peer's link comes, as an address has it; empty where that is not known."""
        ...

    async def close(self) -> None:
        """Go offline; all links end."""
        ...
