"""Requests over links: to neighbours on theirs, to others on a link that is dialled for it and kept for a while."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from waggle.core.clock import Clock
from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError, NetworkError
from waggle.core.keys import peer_name
from waggle.net.book import Book
from waggle.net.deadline import deadline
from waggle.net.frames import Request
from waggle.net.transport import Answer
from waggle.net.wire import MAX_REQUEST_BYTES, Link, Reply, Wire

DIAL_S = 5.0
"""Longest wait for a connection, and for the first frame on it."""
VISITS = 16
"""Links kept to peers who are no neighbours."""


class Requests:
    """Both sides of `Transport.request`.

    Args:
        neighbour: the link to a neighbour, or None.
        begin: starts a task that ends with the transport.
    """

    def __init__(
        self,
        wire: Wire,
        clock: Clock,
        book: Book,
        counts: Counter[str],
        neighbour: Callable[[bytes], Link | None],
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._wire, self._clock, self._book, self._counts = wire, clock, book, counts
        self._neighbour, self._begin = neighbour, begin
        self._visits: OrderedDict[bytes, Link] = OrderedDict()
        self.answers: dict[str, Answer] = {}

    async def request(self, peer: bytes, proto: str, body: bytes, timeout_s: float, max_reply_bytes: int) -> bytes:
        """Ask; see `Transport.request`."""
        name = peer_name(peer)
        async with deadline(self._clock, timeout_s, f"{name} to answer {proto}"):
            link = self._neighbour(peer) or self._visits.get(peer) or await self._visit(peer, proto)
            self.count("sent", len(body))
            try:
                reply = await link.ask(encode(Request(proto, body)), max_reply_bytes)
            except NetworkError as error:
                raise NetworkError(f"{name} did not answer {proto}: {error}") from error
        if not reply.fine:
            raise NetworkError(f"{name} {reply.body[:300].decode('utf-8', 'replace')}")
        self.count("received", len(reply.body))
        return reply.body

    async def _visit(self, peer: bytes, proto: str) -> Link:
        name, where = peer_name(peer), self._book.get(peer)
        if where is None:
            raise NetworkError(f"{name} cannot be reached for {proto}; no address of it is known")
        try:
            async with deadline(self._clock, DIAL_S, f"a connection to {name}"):
                link = await self._wire.dial(where)
        except NetworkError as error:
            self._book.failed(peer, self._clock.now_s())
            raise NetworkError(f"{name} cannot be reached for {proto}: {error}") from error
        while len(self._visits) >= VISITS:
            self._visits.popitem(last=False)[1].close("no longer needed")
        self._visits[peer] = link
        self._begin(self._watch(link))
        return link

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
        """Close the visit to a peer, if there is one."""
        if link := self._visits.pop(peer, None):
            link.close(why)

    def close(self) -> None:
        """Close all visits."""
        for peer in list(self._visits):
            self.end_visit(peer, "going offline")

    async def answer(self, caller: bytes, data: bytes) -> Reply:
        """What a peer gets for a request, whatever the bytes."""
        try:
            asked = decode(Request, data, MAX_REQUEST_BYTES + 1024)
        except DecodeError as error:
            self._counts["rejected"] += 1
            return Reply(False, f"cannot read the request: {error}".encode())
        self.count("received", len(asked.body))
        answer = self.answers.get(asked.proto)
        if answer is None:
            return Reply(False, f"does not speak {asked.proto}".encode())
        try:
            body = await answer(caller, asked.body)
        except Exception as error:  # a failure of ours is data for whoever asked
            return Reply(False, f"failed to answer {asked.proto}: {error}".encode())
        self.count("sent", len(body))
        return Reply(True, body)

    def count(self, way: str, size_bytes: int) -> None:
        """Count one message that was `sent` or `received`."""
        self._counts[way] += 1
        self._counts[f"{way}_bytes"] += size_bytes
