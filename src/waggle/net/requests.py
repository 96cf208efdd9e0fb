"""Requests over links: to neighbours on theirs, to others on a link that is dialled for it and kept for a while."""

import asyncio
from collections import Counter
from collections.abc import Callable

from waggle.core.clock import Clock
from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError, NetworkError
from waggle.core.keys import peer_name
from waggle.core.types import Peer
from waggle.net.book import Book
from waggle.net.deadline import deadline
from waggle.net.frames import Request
from waggle.net.tasks import Tasks
from waggle.net.transport import Answer, count_traffic
from waggle.net.wire import MAX_REQUEST_BYTES, Link, Reply, Rude, Wire

DIAL_S = 8.0
"""Longest wait for a connection, and for the first frame on it."""
MEMBERS_ONLY = "answers members of its swarm only"
VISITS = 16
"""Links kept to peers who are no neighbours."""


class Requests:
    """Both sides of `Transport.request`.

    Args:
        neighbour: the link to a neighbour, or None.
        admits: who may ask.
        tasks: those of the transport.
    """

    def __init__(
        self,
        wire: Wire,
        clock: Clock,
        book: Book,
        counts: Counter[str],
        neighbour: Callable[[bytes], Link | None],
        admits: Callable[[bytes], bool],
        tasks: Tasks,
    ) -> None:
        self._wire, self._clock, self._book, self._counts = wire, clock, book, counts
        self._neighbour, self._admits, self._tasks = neighbour, admits, tasks
        self._visits: dict[bytes, Link] = {}
        self._dials: dict[bytes, asyncio.Task[tuple[Link | None, str]]] = {}
        self._users: Counter[bytes] = Counter()
        """How many wait for a peer's answer."""
        self._ending: dict[bytes, list[Link]] = {}
        """Former visits to a peer, which end with its last answer."""
        self.answers: dict[str, Answer] = {}

    async def request(self, peer: bytes, proto: str, body: bytes, timeout_s: float, max_reply_bytes: int) -> bytes:
        """Ask; see `Transport.request`."""
        name = peer_name(peer)
        self._users[peer] += 1
        try:
            async with deadline(self._clock, timeout_s, f"{name} to answer {proto}"):
                link = self._neighbour(peer) or self._visits.get(peer) or await self._visit(peer, proto)
                count_traffic(self._counts, "sent", len(body))
                reply = await _asked(link, name, proto, body, max_reply_bytes)
        finally:
            self._leave(peer)
        if not reply.fine:
            raise NetworkError(f"{name} {reply.body[:300].decode('utf-8', 'replace')}")
        count_traffic(self._counts, "received", len(reply.body))
        return reply.body

    async def _visit(self, peer: bytes, proto: str) -> Link:
        """A link to somebody who is no neighbour; all who ask for one at a time share it."""
        where = self._book.get(peer)
        if where is None:
            raise NetworkError(f"{peer_name(peer)} cannot be reached for {proto}; no address of it is known")
        if peer not in self._dials:
            self._dials[peer] = self._tasks.begin(self._dial(where))
        link, why = await asyncio.shield(self._dials[peer])  # one who gives up leaves the dial to the others
        if link is None:
            raise NetworkError(f"{peer_name(peer)} cannot be reached for {proto}: {why}")
        return link

    async def _dial(self, where: Peer) -> tuple[Link | None, str]:
        try:
            async with deadline(self._clock, DIAL_S, f"a connection to {peer_name(where.id)}"):
                link = await self._wire.dial(where)
        except NetworkError as error:
            self._book.failed(where.id, self._clock.now_s())
            return None, str(error)
        except asyncio.CancelledError:  # who waits for this is told, and not cancelled along
            return None, "this node goes offline"
        finally:
            del self._dials[where.id]
        idle = [peer for peer in self._visits if not self._users[peer]]
        for peer in idle[: max(0, len(self._visits) + 1 - VISITS)]:
            self.end_visit(peer, "no longer needed")
        self._visits[where.id] = link
        self._tasks.begin(self._watch(link))
        return link, ""

    def _leave(self, peer: bytes) -> None:
        self._users[peer] -= 1
        if not self._users[peer]:
            del self._users[peer]
            for link in self._ending.pop(peer, ()):
                link.close("no longer needed")

    async def _watch(self, link: Link) -> None:
        """A visit lasts as long as its link; frames have no place on it."""
        why = "frames on a visit"
        try:
            await link.receive()
        except NetworkError as error:
            why = str(error)
        if self._visits.get(link.peer) is link:
            del self._visits[link.peer]
        link.close(why)

    def end_visit(self, peer: bytes, why: str) -> None:
        """Close the visit to a peer, if there is one, once nobody waits for an answer on it."""
        link = self._visits.pop(peer, None)
        if link and self._users[peer]:
            self._ending.setdefault(peer, []).append(link)
        elif link:
            link.close(why)

    def close(self) -> None:
        """Close all visits at once."""
        for link in (*self._visits.values(), *(link for links in self._ending.values() for link in links)):
            link.close("going offline")
        self._visits.clear()
        self._ending.clear()

    async def answer(self, caller: bytes, data: bytes) -> Reply:
        """What a peer gets for a request, whatever the bytes.

        Raises:
            Rude: they are no request.
        """
        if not self._admits(caller):
            self._counts["rejected"] += 1
            return Reply(False, MEMBERS_ONLY.encode())
        try:
            asked = decode(Request, data, MAX_REQUEST_BYTES)
        except DecodeError as error:
            raise Rude("no-request", f"cannot read the request: {error}") from error
        count_traffic(self._counts, "received", len(asked.body))
        answer = self.answers.get(asked.proto)
        if answer is None:
            return Reply(False, f"does not speak {asked.proto}".encode())
        try:
            body = await answer(caller, asked.body)
        except Exception as error:  # a failure of ours is data for whoever asked
            return Reply(False, f"failed to answer {asked.proto}: {error}".encode())
        count_traffic(self._counts, "sent", len(body))
        return Reply(True, body)


async def _asked(link: Link, name: str, proto: str, body: bytes, max_reply_bytes: int) -> Reply:
    try:
        return await link.ask(encode(Request(proto, body)), max_reply_bytes)
    except NetworkError as error:
        raise NetworkError(f"{name} did not answer {proto}: {error}") from error
