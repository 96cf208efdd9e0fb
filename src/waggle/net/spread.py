"""How a message spreads: read once, ruled on before it is kept or passed on, and carried about once by every uplink.

Up to `EAGER_BYTES` a message is pushed. Of a larger one a few neighbours are told its digest at once, fewer where more
have told of it already, and the others in turns, each of all that it may lack: digests travel together, and none to
who has told of it meanwhile. Who lacks a message asks one of those who told, for a few at a time, and turns to the next
where one sends neither it nor anything else. Large messages are kept for a
while for who asks and, where they are everybody's to read, offered to new neighbours, the newest first: so late joiners
and islands that meet find what is fresh. Everything is bounded and forgets its oldest.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from waggle.core.clock import Clock
from waggle.net.frames import MAX_TOLD, Have, Push, Said, Want
from waggle.net.transport import QUEUE, Delivery, Ruling, Subscription, Validate, message_id, remember, some_of
from waggle.net.wire import Rude

EAGER_BYTES = 1024
AT_ONCE = 3
"""Neighbours who are told of a large message at once, at most; one at least."""
WINDOW = 8
"""Messages that one neighbour is asked for at a time."""
WANT_S, LATE_S = 4.0, 60.0
"""How long a neighbour may take over a message while nothing comes from it, and at most."""
KEPT_S, KEPT_BYTES = 120.0, 32 << 20
REMEMBERED = 8192
CHARGED_BYTES, CHARGED_LATE_BYTES, CHARGED_NAMES, CHARGED_JUNK = 4096, 1 << 16, 16, 3.0
"""What costs as much as a small frame: bytes that nobody asked for, bytes that came from another one meanwhile, ids.
And what a refused message costs besides."""
_MAX_WANTED, _MAX_FROM_ONE, _MAX_SOURCES, _MAX_TRIES = 1024, 256, 16, 12

Sends = Iterator[tuple[bytes, Said]]
"""What to send to whom."""


@dataclass
class _Wanted:
    first: bytes
    """Who told of it first."""
    sources: dict[bytes, None] = field(default_factory=dict)
    """Who has it, in the order in which they are asked."""
    asked: bytes | None = None
    asked_s: float = 0.0
    tries: int = 0


@dataclass
class _Kept:
    push: Push
    until_s: float
    offered: bool
    aware: set[bytes] = field(default_factory=set)
    """Neighbours who have it or were told of it."""


class Spread:
    """What one node knows of messages. Its methods say what to send; sending is the caller's.

    Args:
        charge: told what a neighbour sent that was not asked for, as a number of small frames; may raise `Rude`.
    """

    def __init__(
        self,
        clock: Clock,
        counts: Counter[str],
        rng: np.random.Generator,
        charge: Callable[[bytes, float], None] = lambda peer, cost: None,
    ) -> None:
        self._clock, self._counts, self._rng, self._charge = clock, counts, rng, charge
        self._topics: dict[bytes, Subscription] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        """Apart from what is known, so that junk cannot make it forgotten."""
        self._wanted: OrderedDict[bytes, _Wanted] = OrderedDict()
        self._asked: Counter[bytes] = Counter()
        """Messages that each neighbour is being asked for."""
        self._told: Counter[bytes] = Counter()
        """Messages wanted of which each neighbour told first."""
        self._wished: OrderedDict[bytes, None] = OrderedDict()
        """What somebody was asked for at some time, so that a late answer is none that nobody asked for."""
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._later: dict[bytes, None] = {}
        """Messages of which neighbours are still to be told."""

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        """Messages of a topic from now on."""
        self._topics[topic] = Subscription(validate, QUEUE)
        return self._topics[topic]

    def publish(self, topic: bytes, data: bytes, receivers: Sequence[bytes], to_all: bool) -> Sends:
        """A message of mine."""
        push = Push(topic, data)
        remember(self._known, message_id(topic, data), REMEMBERED)
        yield from self._onward(push, receivers, to_all)

    def receive(self, sender: bytes, push: Push, neighbours: Sequence[bytes]) -> Sends:
        """Take in a message: pass it on if that is due, and ask the sender for what else it has.

        Raises:
            NetworkError: the neighbour sends what nobody asked for.
        """
        name = message_id(push.topic, push.data)
        wanted = self._drop(name)
        if len(push.data) > EAGER_BYTES and name not in self._wished and name not in self._known:
            raise Rude("unasked", "a large message that nobody asked for")
        if wanted is None:  # of what was asked for once, several may send it
            self._charge(sender, 1 + len(push.data) / (CHARGED_LATE_BYTES if name in self._wished else CHARGED_BYTES))
        if name not in self._known and name not in self._refused and self._rule(sender, name, push):
            yield from self._onward(push, [peer for peer in neighbours if peer != sender], True, wanted)
        if wanted and (more := self._next_of(sender)):
            yield sender, Want(more)

    def _rule(self, sender: bytes, name: bytes, push: Push) -> bool:
        """Hand a new message to who reads its topic; whether it is to be passed on."""
        subscription = self._topics.get(push.topic)
        ruling = subscription.validate(sender, push.data) if subscription else Ruling.REJECT
        if ruling is Ruling.REJECT:
            self._counts["rejected" if subscription else "unheard"] += 1
            self._charge(sender, CHARGED_JUNK)
            remember(self._refused, name, REMEMBERED)
            return False
        assert subscription is not None
        remember(self._known, name, REMEMBERED)
        if not subscription.put(Delivery(sender, push.data)):
            self._counts["dropped"] += 1
        return ruling is Ruling.FORWARD

    def hear(self, sender: bytes, names: Sequence[bytes]) -> Sends:
        """Somebody has messages: ask him for what I lack, a few at a time."""
        self._charge(sender, 1 + len(names) / CHARGED_NAMES)
        for name in names:
            if name in self._kept:
                self._kept[name].aware.add(sender)
            if name in self._known or name in self._refused:
                continue
            if name not in self._wanted and not self._wish(name, sender):
                continue
            wanted = self._wanted[name]
            if len(wanted.sources) < _MAX_SOURCES:
                wanted.sources.setdefault(sender)
        if asked := self._next_of(sender):
            yield sender, Want(asked)

    def _wish(self, name: bytes, sender: bytes) -> bool:
        """Note a message to ask for. Nobody fills the list by himself, and what is asked for already stays on it."""
        if self._told[sender] >= _MAX_FROM_ONE:
            return False
        if len(self._wanted) >= _MAX_WANTED:
            waiting = next((other for other, wanted in self._wanted.items() if wanted.asked is None), None)
            if waiting is None:
                return False
            self._drop(waiting)
        self._wanted[name] = _Wanted(sender)
        self._told[sender] += 1
        return True

    def _next_of(self, peer: bytes) -> tuple[bytes, ...]:
        """Messages to ask a neighbour for now, as many as it may be asked for."""
        room = WINDOW - self._asked[peer]
        if room <= 0:
            return ()
        names = [name for name, w in self._wanted.items() if w.asked is None and peer in w.sources][:room]
        for name in names:
            self._ask(name, self._wanted[name], peer)
        return tuple(names)

    def _ask(self, name: bytes, wanted: _Wanted, peer: bytes) -> None:
        remember(self._wished, name, REMEMBERED)
        wanted.asked, wanted.asked_s, wanted.tries = peer, self._clock.passed_s(), wanted.tries + 1
        self._asked[peer] += 1

    def _drop(self, name: bytes) -> _Wanted | None:
        wanted = self._wanted.pop(name, None)
        if wanted:
            self._let_off(wanted)
            self._told[wanted.first] -= 1
            if not self._told[wanted.first]:
                del self._told[wanted.first]
        return wanted

    def _let_off(self, wanted: _Wanted) -> None:
        """Do not wait for the one who was asked any more; he is asked last if there are others."""
        if wanted.asked is None:
            return
        self._asked[wanted.asked] -= 1
        if not self._asked[wanted.asked]:
            del self._asked[wanted.asked]
        if wanted.asked in wanted.sources:
            del wanted.sources[wanted.asked]
            wanted.sources[wanted.asked] = None
        wanted.asked = None

    def look(self, neighbours: Collection[bytes], flowing: Collection[bytes]) -> Sends:
        """What is due: others to ask for what did not come, and neighbours to tell of messages.

        Args:
            flowing: those of the neighbours from whom something came since the last look.
        """
        now_s = self._clock.passed_s()
        asked: dict[bytes, list[bytes]] = {}
        for name, wanted in list(self._wanted.items()):
            waits_s = now_s - wanted.asked_s
            if wanted.asked in neighbours and (waits_s < WANT_S or (wanted.asked in flowing and waits_s < LATE_S)):
                continue
            self._let_off(wanted)
            here = [peer for peer in wanted.sources if peer in neighbours]
            if not here or wanted.tries >= _MAX_TRIES:
                self._drop(name)
            elif free := next((peer for peer in here if self._asked[peer] < WINDOW), None):
                self._ask(name, wanted, free)
                asked.setdefault(free, []).append(name)
        yield from ((peer, Want(tuple(names))) for peer, names in asked.items())
        yield from self._tell(neighbours)

    def _tell(self, neighbours: Collection[bytes]) -> Sends:
        """Tell the one who may lack most of all that it may lack; the others have their turn with the next looks."""
        lacks: dict[bytes, list[bytes]] = {}
        for name in list(self._later):
            lacking = [peer for peer in neighbours if peer not in self._kept[name].aware] if name in self._kept else []
            for peer in lacking:
                lacks.setdefault(peer, []).append(name)
            if not lacking:
                del self._later[name]
        if lacks:
            peer = max(lacks, key=lambda one: len(lacks[one]))
            for name in lacks[peer]:
                self._kept[name].aware.add(peer)
            yield from ((peer, have) for have in _told(lacks[peer]))

    def asked(self, peer: bytes, names: Sequence[bytes]) -> Sends:
        """Messages that a neighbour wants, as far as they are still here."""
        self._expire()
        yield from ((peer, self._kept[name].push) for name in names if name in self._kept)

    def has(self, name: bytes) -> bool:
        """Whether a large message is still here."""
        return name in self._kept

    def offers(self, peer: bytes) -> Sends:
        """What a new neighbour is told of."""
        self._expire()
        names = [name for name, kept in reversed(self._kept.items()) if kept.offered]
        for name in names:
            self._kept[name].aware.add(peer)
        yield from ((peer, have) for have in _told(names))

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self._topics.values():
            subscription.close()
        self._topics.clear()

    def _onward(self, push: Push, receivers: Sequence[bytes], offered: bool, wanted: _Wanted | None = None) -> Sends:
        if len(push.data) <= EAGER_BYTES:
            yield from ((peer, push) for peer in receivers)
            return
        name = message_id(push.topic, push.data)
        if known := self._kept.pop(name, None):
            self._kept_bytes -= len(known.push.data)
        kept = self._kept[name] = _Kept(push, self._clock.passed_s() + KEPT_S, offered)
        self._kept_bytes += len(push.data)
        kept.aware.update(wanted.sources if wanted else ())
        untold = [peer for peer in receivers if peer not in kept.aware]
        first = some_of(untold, max(1, AT_ONCE + 1 - max(1, len(kept.aware))) if offered else 0, self._rng)
        kept.aware.update(first)
        if len(first) < len(untold):
            self._later[name] = None
        self._expire()
        yield from ((peer, Have((name,))) for peer in first)

    def _expire(self) -> None:
        now_s = self._clock.passed_s()
        while self._kept:
            kept = next(iter(self._kept.values()))
            if kept.until_s > now_s and self._kept_bytes <= KEPT_BYTES:
                break
            self._kept.popitem(last=False)
            self._kept_bytes -= len(kept.push.data)


def _told(names: Sequence[bytes]) -> Iterator[Have]:
    for first in range(0, len(names), MAX_TOLD):
        yield Have(tuple(names[first : first + MAX_TOLD]))
