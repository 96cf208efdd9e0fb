"""A swarm's network over any wire: who is whose neighbour, and how messages spread.

Every node keeps a few neighbours (`least` wanted, at most `most`), both ends agree on it, and a book of addresses to
draw others from when one goes (HyParView, Leitao et al. 2007). A node without any neighbour is taken in even by a full
one, in the place of a late one, though not of many in a row. Who was silent for `SILENT_S` is gone, whatever the wire
believes.

A message up to `EAGER_BYTES` is pushed to neighbours as it is; of a larger one they are told the digest and ask for it
once, so that an uplink carries it about once a node and not once a link (`net/spread.py`). A validator rules before
anything is kept or passed on. Nothing here waits for a peer without a deadline, queues are bounded, and a neighbour who
sends what is no frame, or too much, is dropped and told why.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError, printable
from waggle.core.keys import Key, peer_name
from waggle.core.rng import rng_for, seed_for
from waggle.core.types import Peer
from waggle.net import frames, reach
from waggle.net.allowance import Allowance
from waggle.net.book import Book, Record, signed
from waggle.net.deadline import deadline
from waggle.net.frames import TOLD, Bye, Have, Hello, Known, Ping, Push, Said, Want, Welcome
from waggle.net.neighbour import Neighbour
from waggle.net.requests import DIAL_S, Requests
from waggle.net.spread import Sends, Spread
from waggle.net.tasks import Tasks
from waggle.net.terms import Terms, keeps
from waggle.net.transport import (
    MAX_REPLY_BYTES,
    Answer,
    Subscription,
    Validate,
    check_body,
    check_size,
    count_traffic,
    nobody_answered,
    not_online,
    some_of,
)
from waggle.net.wire import Link, Rude, Wire

TICK_S, PING_S, SILENT_S = 0.5, 2.5, 12.0
"""Silence is longer than a line takes that loses a tenth and answers after two seconds."""
GOSSIP_S = 30.0
"""How often a neighbour is told of others, a stranger met, and the book saved."""
EVICT_S = 5.0
RETURN_S = 10.0
"""How often a node without neighbours turns to those through whom it came."""
NO_ROOM = "no room"
TELLINGS_PER_S, TELLINGS_AT_ONCE = 0.5, 16.0
"""How often the records that neighbours tell of unasked are looked at."""
MAX_STRANGERS = 32  # links of peers who are no neighbours of mine


class OverlayTransport:
    """Fills `Transport` over a `Wire`. Example: `OverlayTransport(key, wire, SystemClock(), Book(key.id))`."""

    def __init__(self, key: Key, wire: Wire, clock: Clock, book: Book, terms: Terms = Terms()) -> None:
        self.id = key.id
        self.max_message = frames.MAX_MESSAGE_BYTES
        self.counts: Counter[str] = wire.guard.counts
        self.book = book
        self._key, self._wire, self._clock = key, wire, clock
        self._terms, self._least, self._most = terms, terms.least, terms.most
        self._rng = rng_for(seed_for("overlay", key.id, int(clock.now_s() * 1000)))
        self._neighbours: dict[bytes, Neighbour] = {}
        self._spread = Spread(clock, self.counts, self._rng, self._charge)
        self._tasks = Tasks()
        self._tellings = Allowance(TELLINGS_PER_S, TELLINGS_AT_ONCE, clock)
        self._requests = Requests(wire, clock, book, self.counts, self._link_of, terms.admits, self._tasks)
        self.serve(reach.PROTO, reach.dial_back(wire, clock))
        self._meetings: dict[bytes, asyncio.Task[str]] = {}
        self._strangers: dict[Link, None] = {}
        self._bootstrap: list[Peer] = []
        self._welcomed = 0  # welcomes under way, each of which takes a place
        self._address = ""
        self._gossiped_s = self._evicted_s = self._returned_s = 0.0

    async def start(self) -> Peer:
        if not self._address:
            self._address = await self._wire.open(self._on_link, self._requests.answer)
            self._gossiped_s = self._clock.passed_s()
            self.book.load(self._now_ms(), self._rng)
            self._maintaining = self._tasks.begin(self._maintain())
        return Peer(self.id, self._address)

    async def join(self, bootstrap: Sequence[Peer]) -> None:
        self._need_online()
        self._bootstrap = [peer for peer in bootstrap if peer.id != self.id]
        reasons = await asyncio.gather(*(self._ask(peer) for peer in self._bootstrap))
        if all(reasons):
            raise nobody_answered(reasons)
        self._fill()
        await asyncio.gather(*self._meetings.values())

    def peers(self) -> list[bytes]:
        return sorted(self._neighbours)

    async def close(self) -> None:
        if not self._address:
            return
        self._address = ""  # from here on nobody is met any more
        for task in (self._maintaining, *self._meetings.values()):
            task.cancel()
        known = self.book.sample(TOLD, self._rng)
        leaving = [n.leave(frames.write(Bye(known)), "going offline") for n in self._neighbours.values()]
        self._neighbours.clear()
        await asyncio.gather(*leaving)
        await self._tasks.cancel()
        self._requests.close()
        self._spread.close()
        await self._wire.close()
        self.book.keep()

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        return self._spread.subscribe(topic, validate)

    async def publish(self, topic: bytes, data: bytes, fanout: int = 0) -> int:
        self._need_online()
        check_size(self, data)
        receivers = some_of(self.peers(), fanout, self._rng)
        self._post_all(self._spread.publish(topic, data, receivers, to_all=not fanout))
        return len(receivers)

    def _post_all(self, sends: Sends) -> None:
        said, data = None, b""
        for peer, what in sends:
            if what is not said:
                said, data = what, frames.write(what)
            self._post(peer, data, len(what.data) if isinstance(what, Push) else 0)

    def _post(self, peer: bytes, data: bytes, message_bytes: int = 0) -> None:
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            return
        if not neighbour.post(data):
            self.counts["dropped"] += 1
        elif message_bytes:
            count_traffic(self.counts, "sent", message_bytes)

    def serve(self, proto: str, answer: Answer) -> None:
        self._requests.answers[proto] = answer

    async def request(
        self, peer: bytes, proto: str, body: bytes, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> bytes:
        self._need_online()
        check_body(body)
        return await self._requests.request(peer, proto, body, timeout_s, max_reply_bytes)

    def _ask(self, peer: Peer) -> "asyncio.Task[str]":
        """Ask a peer to be my neighbour. The task says why it did not answer; that it has no room is an answer."""
        if peer.id not in self._meetings:
            self._meetings[peer.id] = self._tasks.begin(self._meet(peer))
        return self._meetings[peer.id]

    async def _meet(self, peer: Peer) -> str:
        try:
            return "" if peer.id in self._neighbours else await self._introduce(peer)
        except NetworkError as error:
            self.book.failed(peer.id, self._clock.now_s())
            return str(error)
        finally:
            del self._meetings[peer.id]

    async def _introduce(self, peer: Peer) -> str:
        terms = self._terms
        async with deadline(self._clock, DIAL_S, f"{peer_name(peer.id)} to welcome me"):
            link = await self._wire.dial(peer)
            try:
                hello = Hello(terms.speaks, terms.network, not self._neighbours, self._record())
                await link.send([frames.write(hello)])
                said = frames.read(await link.receive())
                if not isinstance(said, Welcome) or said.record.peer != link.peer:
                    raise NetworkError("a first frame that is no welcome")
            except BaseException:
                link.close("no welcome")
                raise
        self._learn((said.record, *said.known))
        if said.version in terms.speaks:
            self._adopt(link)
            return ""
        self.book.failed(peer.id, self._clock.now_s())  # it rests before it is asked again
        link.close(NO_ROOM)
        if said.why == NO_ROOM:
            return ""
        self.counts["turned-away"] += 1
        return f"{peer_name(peer.id)} says: {printable(said.why)}"

    def _on_link(self, link: Link) -> None:
        """Somebody came. Who says nothing may stay for requests, as long as there are not too many of his kind."""
        self._strangers[link] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close("too many strangers")
            self.counts["too-many-strangers"] += 1
        self._tasks.begin(self._receive_hello(link))

    async def _receive_hello(self, link: Link) -> None:
        try:
            said = frames.read(await link.receive())
            if not isinstance(said, Hello) or said.record.peer != link.peer:
                raise Rude("no-hello", "a first frame that is no hello")
            self._need_online()
            why = self._terms.objection(link.peer, said)
            if why:
                self.counts["turned-away"] += 1
            else:
                self._learn((said.record,))
                why = "" if self._has_room(said.alone, link.peer) else NO_ROOM
            version = 0 if why else self._terms.version(said.speaks)
            self._welcomed += not why
            try:
                async with deadline(self._clock, DIAL_S, "a welcome to be taken"):
                    known = self.book.sample(TOLD, self._rng) if why in ("", NO_ROOM) else ()
                    await link.send([frames.write(Welcome(version, why, self._record(), known))])
            finally:
                self._welcomed -= not why
            if why:
                await self._clock.sleep(DIAL_S)  # the other end closes; who does not is helped
                raise NetworkError(why)
            self._adopt(link)
        except NetworkError as error:
            self._blame(link, error)
            link.close(str(error)[:100])
        finally:
            self._strangers.pop(link, None)

    def _has_room(self, alone: bool, peer: bytes) -> bool:
        if peer in self._neighbours or len(self._neighbours) + self._welcomed < self._most:
            return True
        return alone and self._evict("room for a newcomer")

    def _evict(self, why: str) -> bool:
        """Take leave of a neighbour, if that can be asked of one: of whom I dialled or know longest I never do.

        Nor of anybody more often than every `EVICT_S`, so that a crowd of newcomers cannot push all others out.
        """
        now_s = self._clock.passed_s()
        if now_s - self._evicted_s < EVICT_S:
            return False
        came = [peer for peer, neighbour in self._neighbours.items() if not neighbour.link.dialled]
        late = came[self._least // 2 :]
        if not late:
            return False
        self._evicted_s = now_s
        self._part(some_of(late, 1, self._rng)[0], why)
        return True

    def _adopt(self, link: Link) -> None:
        """Make a link that both ends agreed on a neighbour's. Where both dialled at once, one link of two stays."""
        if not self._address:
            return link.close("going offline")
        known = self._neighbours.get(link.peer)
        if known is not None:
            if known.link.dialled != link.dialled and known.is_new and not keeps(link, self.id):
                link.close("one link is enough")
                return
            self._forget(known, "one link is enough")
        self._requests.end_visit(link.peer, "a neighbour now")
        neighbour = Neighbour(link, self._clock)
        self._neighbours[link.peer] = neighbour
        self._tasks.begin(self._listen(neighbour))
        self._tasks.begin(neighbour.write())
        self._post_all(self._spread.offers(link.peer))

    async def _listen(self, neighbour: Neighbour) -> None:
        rests = False
        try:
            while True:
                said = frames.read(await neighbour.link.receive())
                neighbour.heard_s = self._clock.passed_s()
                if isinstance(said, Bye):
                    self._hear_of(said.known)
                    rests = True
                    raise NetworkError("goodbye")
                self._on_frame(neighbour, said)
        except NetworkError as error:
            self._blame(neighbour.link, error)
            self._forget(neighbour, str(error), rests)

    def _blame(self, link: Link, error: NetworkError) -> None:
        if isinstance(error, Rude):
            self._wire.guard.blame(link.peer, link.origin, error.reason)

    def _on_frame(self, neighbour: Neighbour, said: Said) -> None:
        peer = neighbour.link.peer
        if isinstance(said, Known):
            neighbour.count(1 + len(said.records))
            if neighbour.tellings.take():
                self._hear_of(said.records)
        elif isinstance(said, Want):
            names = [name for name in said.ids if self._spread.has(name) and neighbour.may_have(name)]
            neighbour.count((len(said.ids) - len(names)) / 2)  # who asks for what there is is not held up
            self._post_all(self._spread.asked(peer, names))
        elif isinstance(said, Have):
            self._post_all(self._spread.hear(peer, said.ids))
        elif isinstance(said, Push):
            count_traffic(self.counts, "received", len(said.data))
            self._post_all(self._spread.receive(peer, said, self.peers()))
        elif isinstance(said, Ping):
            neighbour.count(1)
        else:
            raise Rude("out-of-place", "a frame that has no place here")

    def _charge(self, peer: bytes, cost: float) -> None:
        if peer in self._neighbours:
            self._neighbours[peer].count(cost)

    def _part(self, peer: bytes, why: str) -> None:
        """Take leave of a neighbour: tell it others, then let go once that is written."""
        neighbour = self._neighbours.pop(peer)
        self._tasks.begin(neighbour.leave(frames.write(Bye(self.book.sample(TOLD, self._rng))), why))

    def _forget(self, neighbour: Neighbour, why: str, rests: bool = False) -> None:
        if self._neighbours.get(neighbour.link.peer) is neighbour:
            del self._neighbours[neighbour.link.peer]
            if neighbour.is_new or rests:
                self.book.failed(neighbour.link.peer, self._clock.now_s())
            else:
                self.book.worked(neighbour.link.peer)
            if not self._neighbours and self._address:
                self._fill()
        neighbour.close(why)

    async def _maintain(self) -> None:
        """Whatever is due. Nothing here waits for a peer: pings have to go out in time."""
        while True:
            await self._clock.sleep(TICK_S)
            now_s = self._clock.passed_s()
            for neighbour in list(self._neighbours.values()):
                neighbour.look(now_s)
                if now_s - neighbour.heard_s > SILENT_S:
                    self.counts["silent"] += 1
                    self._forget(neighbour, "silent")
                elif now_s - neighbour.posted_s > PING_S:
                    neighbour.post(frames.write(Ping()), first=True)
            flowing = [peer for peer, neighbour in self._neighbours.items() if neighbour.is_flowing]
            self._post_all(self._spread.look(self.peers(), flowing))
            if now_s - self._gossiped_s > GOSSIP_S:
                self._gossip(now_s)
            self._fill()

    def _gossip(self, now_s: float) -> None:
        """Tell a neighbour of others, and meet a stranger: islands that were cut apart find each other by that."""
        self._gossiped_s = now_s
        self._address = self._address and self._wire.address()
        self.book.keep()
        if self._neighbours:
            told = (self._record(), *self.book.sample(TOLD - 1, self._rng))
            self._post(some_of(self.peers(), 1, self._rng)[0], frames.write(Known(told)))
        for stranger in self._draw(1):
            if len(self._neighbours) < self._most or self._evict("room for a stranger"):
                self._ask(stranger)

    def _fill(self) -> None:
        """Ask peers out of the book, while there are too few neighbours; without any, those I came through, too."""
        now_s = self._clock.passed_s()
        missing = self._least - len(self._neighbours) - len(self._meetings)
        if missing > 0:
            for peer in self._draw(missing):
                self._ask(peer)
        if not self._neighbours and not self._meetings and now_s - self._returned_s > RETURN_S:
            self._returned_s = now_s
            for peer in self._bootstrap:
                self._ask(peer)

    def _draw(self, num: int) -> list[Peer]:
        """Peers out of the book whom I do not know yet, and who are not kept out."""
        without = {*self._neighbours, *self._meetings, *self._wire.guard.kept_out()}
        return self.book.draw(num, self._rng, self._clock.now_s(), without)

    def _learn(self, records: Sequence[Record]) -> None:
        for record in records:
            self.book.add(record, self._now_ms(), self._rng)

    def _hear_of(self, records: Sequence[Record]) -> None:
        """Learn what neighbours tell unasked, at a bounded rate for all of them together."""
        if self._tellings.take():
            self._learn(records)

    def _record(self) -> Record:
        return signed(self._key, self._address, self._now_ms())

    def _link_of(self, peer: bytes) -> Link | None:
        neighbour = self._neighbours.get(peer)
        return neighbour.link if neighbour else None

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    def _need_online(self) -> None:
        if not self._address:
            raise not_online(self.id)
