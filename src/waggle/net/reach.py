"""Can others reach me? A peer finds out by dialling back.

Who asks gives the id of an endpoint that the peer has never talked to, and its port: on an endpoint with which there
has been talk the peer would come through a door that is open for it alone. The peer dials at the address from which the
question came, so nobody can be sent to dial somebody else's.
"""

from typing import Annotated

from msgspec import Meta

from waggle.core.clock import Clock
from waggle.core.codec import decode, encode
from waggle.core.errors import NetworkError
from waggle.core.types import Noun, Peer, PeerId
from waggle.net.allowance import Allowance
from waggle.net.deadline import deadline
from waggle.net.transport import Answer
from waggle.net.wire import Wire

PROTO = "waggle/dial-back/1"
DIAL_BACK_S = 5.0
PER_S, AT_ONCE = 0.2, 5.0
"""How often a node dials back, for all who ask together."""


class DialBack(Noun, frozen=True):
    """A request to dial an endpoint of the caller's on this port; the answer is why it was not reached, or empty."""

    peer: PeerId
    port: Annotated[int, Meta(ge=1, le=65535)]


def dial_back(wire: Wire, clock: Clock) -> Answer:
    """What a node answers."""
    allowance = Allowance(PER_S, AT_ONCE, clock)

    async def answer(caller: bytes, body: bytes) -> bytes:
        asked = decode(DialBack, body)
        host = wire.host_of(caller)
        if not host:
            raise NetworkError("does not see where the caller is, which comes by a relay")
        if not allowance.take():
            raise NetworkError("has dialled back too often just now; ask again in a minute")
        try:
            async with deadline(clock, DIAL_BACK_S, "the caller's endpoint"):
                link = await wire.dial(Peer(asked.peer, f"{host}:{asked.port}"))
        except NetworkError as error:
            return str(error).encode()
        link.close("reached")
        return b""

    return answer


def ask_to_dial(peer: bytes, port: int) -> bytes:
    """The body of a request."""
    return encode(DialBack(peer, port))
