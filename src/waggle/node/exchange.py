"""A node's side of the swarm: offers its rounds, hears of others', pulls what it wants.

A round is announced as one signed list of digests to a bounded sample of neighbours and is passed on by
nobody; experience itself moves only when asked for, several groups in one batch, without what the list has said
already: the receiver rebuilds and checks the rest. A neighbour that is new to me
is asked once for what it offered recently, so a late joiner, a node that slept and two islands that meet
all find what is fresh. What peers ask is answered on the transport's thread, which need not be that of the rounds.
All peers are asked at once, and a round waits for their answers but a moment: what comes later serves the next round,
so that slow peers hold nobody up. Who fails is left alone for a while, twice as long each time, and is new afterwards.
A peer that takes and does not give is given less; how much is for `swarm/trust.py` to say.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

from msgspec import Meta

from waggle.core.clock import Clock
from waggle.core.codec import decode, digest, encode
from waggle.core.config import ShareConfig
from waggle.core.errors import DecodeError, NetworkError
from waggle.core.events import Events
from waggle.core.keys import peer_name
from waggle.core.sealing import announce, answers_of, rebuild
from waggle.core.types import Answers, Body, Digest, Experience, Noun, Peer
from waggle.net.deadline import deadline
from waggle.net.tasks import Tasks
from waggle.net.transport import Delivery, Ruling, Transport
from waggle.swarm.admission import Reason
from waggle.swarm.batch import pack_batch, unpack_batch
from waggle.swarm.sampling import Offer

T = TypeVar("T")
Asked: TypeAlias = dict[bytes, asyncio.Task[list[T]]]
"""Peers who are being asked."""
PULL, RECENT = "waggle/pull/1", "waggle/recent/1"
MAX_IDS = 512
MAX_BATCH_BYTES = 8 << 20
MAX_ANNOUNCEMENT_BYTES = 1 << 16
MAX_GREETING_BYTES = 1 << 18
"""Of a new neighbour's lists, the newest that are read."""
MAX_TOLD = 100
"""Announcements of one neighbour that are kept between two looks; a flood ends there."""
MAX_REST = 6
"""Who fails again and again is asked once in two to the power of this many looks."""


class Pull(Noun, frozen=True):
    """A request for experience by digest. Example: `Pull(charter, (b"..32..",))`."""

    charter: Digest
    ids: Annotated[tuple[Digest, ...], Meta(max_length=MAX_IDS)]


class Exchange:
    """Offers, announcements and pulls of one node over one transport."""

    def __init__(self, transport: Transport, charter: bytes, share: ShareConfig, events: Events, clock: Clock) -> None:
        self.transport, self._charter, self._share, self._events = transport, charter, share, events
        self._clock, self._tasks = clock, Tasks()
        self._greetings: Asked[Delivery] = {}
        self._pulls: Asked[bytes] = {}
        self.window: OrderedDict[int, tuple[Experience, ...]] = OrderedDict()
        """My own offered rounds, newest last, at most `max_lag` of them."""
        self._offered: dict[bytes, Body] = {}
        self._recent: tuple[list[tuple[Experience, ...]], bytes] = [], b""
        """What was answered last of the rounds on offer, and which those were."""
        self._greeted: set[bytes] = set()
        self._told: Counter[bytes] = Counter()
        self._failures: Counter[bytes] = Counter()
        self._rests_until: dict[bytes, int] = {}
        self._looks = 0
        self._refused: deque[tuple[bytes, str]] = deque(maxlen=1 << 16)
        """Senders and reasons, in a queue that two threads may use."""
        self._takers: deque[bytes] = deque(maxlen=1 << 16)
        """Who pulled something, likewise."""
        self._shares: Mapping[bytes, float] = {}
        self._served: set[bytes] = set()
        """Whom less than all was given since the last round; replaced as a whole by the thread of the rounds."""
        transport.serve(PULL, self._serve_pull)
        transport.serve(RECENT, self._serve_recent)
        self._inbox = transport.subscribe(charter, self._ruling)

    def _ruling(self, sender: bytes, data: bytes) -> Ruling:
        self._told[sender] += 1
        if len(data) <= MAX_ANNOUNCEMENT_BYTES and self._told[sender] <= MAX_TOLD:
            return Ruling.DELIVER
        self._refused.append((sender, "too-large" if len(data) > MAX_ANNOUNCEMENT_BYTES else "too-many"))
        return Ruling.REJECT

    @property
    def refused(self) -> Counter[str]:
        """What was refused here and not yet taken into a round's record, by reason."""
        return Counter(reason for _, reason in tuple(self._refused))

    def take_refused(self) -> Counter[tuple[bytes, str]]:
        """The same by sender and reason, which is then taken."""
        return Counter(self._refused.popleft() for _ in range(len(self._refused)))

    def take_takers(self) -> list[bytes]:
        """Who pulled from me since the last call, once for each time."""
        return [self._takers.popleft() for _ in range(len(self._takers))]

    def serve_by(self, shares: Mapping[bytes, float]) -> None:
        """From now on give these peers only such a share of what they ask for, once until the next call."""
        self._shares, self._served = shares, set()

    async def start(self, bootstrap: Sequence[Peer]) -> Peer:
        """Go online. Nobody reachable is not an error: the node trains alone and keeps trying."""
        self._inbox = self.transport.subscribe(self._charter, self._ruling)  # anew: a closed transport ended it
        me = await self.transport.start()
        if bootstrap:
            try:
                await self.transport.join(bootstrap)
            except NetworkError as error:
                self._events.emit("alone", why=str(error))
        return me

    def remember(self, number: int, experiences: Sequence[Experience]) -> None:
        """Keep a round on offer; the oldest goes when there are too many."""
        if not experiences:
            return
        self.window[number] = tuple(experiences)
        for experience in experiences:
            self._offered[digest(experience.body)] = experience.body
        while len(self.window) > self._share.max_lag:
            _, old = self.window.popitem(last=False)
            for experience in old:
                self._offered.pop(digest(experience.body), None)

    async def offer(self, number: int, experiences: Sequence[Experience]) -> int:
        """Announce a sealed round to a sample of neighbours. Returns to how many."""
        if not experiences:
            return 0
        self.remember(number, experiences)
        try:
            data = encode(announce(self._charter, experiences))
            return await self.transport.publish(self._charter, data, self._share.fanout)
        except NetworkError as error:
            self._events.emit("unheard", round=number, why=str(error))
            return 0

    async def hear(self) -> list[Delivery]:
        """Announcements since the last call, those of new neighbours' recent rounds included."""
        neighbours = self.transport.peers()
        self._looks += 1
        self._greeted &= set(neighbours)
        self._rests_until = {p: until for p, until in self._rests_until.items() if p in neighbours}
        self._failures = Counter({p: self._failures[p] for p in neighbours if self._failures[p]})
        new = [peer for peer in neighbours if peer not in self._greeted and not self._rests(peer)]
        found = await self._answers(self._greetings, new, self._greet)
        self._told.clear()
        pushed = [news for news in self._inbox.drain() if not self._rests(news.sender)]
        return [news for _, greeting in found for news in greeting] + pushed

    async def _answers(
        self, asked: Asked[T], peers: Iterable[bytes], ask: Callable[[bytes], Coroutine[Any, Any, list[T]]]
    ) -> list[tuple[bytes, list[T]]]:
        """What peers answered: those who are asked now, but who is still being asked, and those asked before."""
        late = [(peer, asked.pop(peer).result()) for peer in [p for p, task in asked.items() if task.done()]]
        fresh = {peer: self._tasks.begin(ask(peer)) for peer in peers if peer not in asked}
        if not asked and not fresh:
            return late
        asked.update(fresh)
        with contextlib.suppress(NetworkError):
            async with deadline(self._clock, self._share.patience_s, "peers"):
                await asyncio.gather(*map(asyncio.shield, fresh.values()))
        done = [peer for peer, task in asked.items() if task.done()]
        return late + [(peer, asked.pop(peer).result()) for peer in done]

    def is_asked(self, peer: bytes) -> bool:
        """Whether a peer is still being asked for experience, so that it can be asked for no more."""
        return peer in self._pulls and not self._pulls[peer].done()

    def _rests(self, peer: bytes) -> bool:
        return self._looks < self._rests_until.get(peer, 0)

    async def _greet(self, peer: bytes) -> list[Delivery]:
        reply = await self._ask(peer, RECENT, self._charter)
        if reply is None:
            return []
        self._greeted.add(peer)
        lists, room_bytes = deque[bytes](), MAX_GREETING_BYTES
        for data in reversed(self._open(peer, reply, MAX_IDS)):  # the newest, if they are too many
            room_bytes -= len(data)
            if room_bytes >= 0:
                lists.appendleft(data)
        return [Delivery(peer, data) for data in lists]

    async def pull_all(self, wishes: Mapping[bytes, Sequence[Offer]]) -> list[tuple[bytes, bytes]]:
        """Experience of peers, and what came late of what was asked before: who sent it, and its bytes."""
        replies = await self._answers(self._pulls, wishes, lambda peer: self.pull(peer, wishes[peer]))
        return [(peer, data) for peer, reply in replies for data in reply]

    async def pull(self, peer: bytes, offers: Sequence[Offer]) -> list[bytes]:
        """The bytes of these experiences, each of the digest that was announced; fewer where there are no more."""
        asked = offers[:MAX_IDS]
        reply = await self._ask(peer, PULL, encode(Pull(self._charter, tuple(o.entry.id for o in asked))))
        if reply is None:
            return []
        self._failures.pop(peer, None)
        rebuilt = [self._rebuilt(peer, data, asked) for data in self._open(peer, reply, len(asked))]
        return [experience for experience in rebuilt if experience]

    def _rebuilt(self, peer: bytes, data: bytes, asked: Sequence[Offer]) -> bytes:
        """The bytes of an experience, or none where it is not the one that was announced."""
        try:
            answers = decode(Answers, data)
        except DecodeError as error:
            self._refuse(peer, error.reason, str(error))
            return b""
        offer = asked[answers.number] if answers.number < len(asked) else None
        experience = rebuild(offer.news, offer.line, answers) if offer else None
        if experience is None:
            self._refuse(peer, Reason.SIGNATURE, "answers that are not those of the digest that was announced")
            return b""
        assert offer is not None
        whole, entry = encode(experience), offer.entry
        if len(experience.body.completions) != entry.completions or len(whole) > entry.size_bytes:
            self._refuse(peer, Reason.SIGNATURE, "of another size than was announced")
            return b""
        return whole

    async def _ask(self, peer: bytes, proto: str, body: bytes) -> bytes | None:
        try:
            return await self.transport.request(
                peer, proto, body, timeout_s=self._share.timeout_s, max_reply_bytes=MAX_BATCH_BYTES
            )
        except NetworkError as error:
            self._failures[peer] += 1
            self._rests_until[peer] = self._looks + 2 ** min(self._failures[peer], MAX_REST)
            self._greeted.discard(peer)
            self._events.emit("unreachable", peer=peer_name(peer), why=str(error))
            return None

    def _open(self, peer: bytes, reply: bytes, max_items: int) -> list[bytes]:
        try:
            return unpack_batch(reply, MAX_BATCH_BYTES, max_items)
        except DecodeError as error:
            self._refuse(peer, error.reason, str(error))
            return []

    def _refuse(self, peer: bytes, reason: str, detail: str) -> None:
        self._refused.append((peer, reason))
        self._events.emit("refused", peer=peer_name(peer), reason=str(reason), detail=detail)

    async def _serve_pull(self, caller: bytes, body: bytes) -> bytes:
        wanted = decode(Pull, body, max_bytes=64 * MAX_IDS)
        if wanted.charter != self._charter:
            return pack_batch((), MAX_BATCH_BYTES)
        places: dict[bytes, int] = {}
        for number, i in enumerate(wanted.ids):
            places.setdefault(i, number)  # once, however often it is named
        held = [(number, self._offered.get(i)) for i, number in places.items()]
        due = self._due(caller, [(number, body) for number, body in held if body])
        return pack_batch((encode(answers_of(number, body)) for number, body in due), MAX_BATCH_BYTES)

    def _due(self, caller: bytes, held: list[tuple[int, Body]]) -> list[tuple[int, Body]]:
        """What a peer is given of what it asked for: all, or its share of the newest, but one group at least.

        A share is given once between two rounds of mine, so that nobody gets more by asking in small portions.
        """
        if held:
            self._takers.append(caller)
        share = self._shares.get(caller, 1.0)
        if share >= 1 or not held:
            return held
        served = self._served
        if caller in served:
            return []
        served.add(caller)
        newest = sorted(held, key=lambda one: -one[1].round)
        return newest[: max(1, int(share * len(held)))]

    async def _serve_recent(self, caller: bytes, body: bytes) -> bytes:
        rounds = list(self.window.values())[-MAX_IDS:] if body == self._charter else []
        if rounds and rounds == self._recent[0]:
            return self._recent[1]
        reply = pack_batch((encode(announce(self._charter, r)) for r in rounds), MAX_BATCH_BYTES)
        self._recent = rounds, reply
        return reply

    async def close(self) -> None:
        """Say goodbye; who is still being asked is no longer."""
        await self._tasks.cancel()
        self._greetings.clear()
        self._pulls.clear()
        await self.transport.close()
