"""How a message spreads: read once, ruled on before it is kept or passed on, and carried about once by every uplink.

Up to `EAGER_BYTES` a message is pushed; of a larger one neighbours are told its digest, and who lacks it asks one of
those who told, then the next where nothing came within `WANT_S`. Large messages are kept for a while for who asks and,
where they are everybody's to read, offered to new neighbours: so late joiners and islands that meet find what is fresh.
Everything is bounded and forgets its oldest.
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass

from waggle.core.clock import Clock
from waggle.core.errors import NetworkError
from waggle.net.frames import Have, Push
from waggle.net.transport import QUEUE, Delivery, Ruling, Subscription, Validate, message_id, remember

EAGER_BYTES = 1024
WANT_S = 1.5
KEPT_S, KEPT_BYTES = 120.0, 32 << 20
REMEMBERED = 8192
_MAX_WANTED, _MAX_SOURCES, _MAX_TRIES = 1024, 16, 12


@dataclass
class _Wanted:
    asked_s: float
    sources: dict[bytes, None]
    """Who has it, in the order in which they are asked; the first was asked last."""
    tries: int = 1


@dataclass(frozen=True)
class _Kept:
    push: Push
    until_s: float
    offered: bool


class Spread:
    """What one node knows of messages. Its methods say what to send; sending is the caller's."""

    def __init__(self, clock: Clock, counts: Counter[str]) -> None:
        self._clock, self._counts = clock, counts
        self._topics: dict[bytes, Subscription] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        """Apart from what is known, so that junk cannot make it forgotten."""
        self._wanted: OrderedDict[bytes, _Wanted] = OrderedDict()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0

    def subscribe(self, topic: bytes, validate: Validate) -> Subscription:
        """Messages of a topic from now on."""
        self._topics[topic] = Subscription(validate, QUEUE)
        return self._topics[topic]

    def publish(self, topic: bytes, data: bytes, to_all: bool) -> Push | Have:
        """What to send of a message of mine."""
        push = Push(topic, data)
        remember(self._known, message_id(topic, data), REMEMBERED)
        return self._onward(push, to_all)

    def receive(self, sender: bytes, push: Push) -> Push | Have | None:
        """Take in a message: what to pass on of it, if anything.

        Raises:
            NetworkError: the neighbour sends what nobody asked for.
        """
        name = message_id(push.topic, push.data)
        wanted = self._wanted.pop(name, None)
        if len(push.data) > EAGER_BYTES and wanted is None and name not in self._known:
            raise NetworkError("a large message that nobody asked for")
        subscription = self._topics.get(push.topic)
        if name in self._known or name in self._refused:
            return None
        ruling = subscription.validate(sender, push.data) if subscription else Ruling.REJECT
        if ruling is Ruling.REJECT:
            self._counts["rejected" if subscription else "unheard"] += 1
            remember(self._refused, name, REMEMBERED)
            return None
        assert subscription is not None
        remember(self._known, name, REMEMBERED)
        if not subscription.put(Delivery(sender, push.data)):
            self._counts["dropped"] += 1
        return self._onward(push, True) if ruling is Ruling.FORWARD else None

    def hear(self, sender: bytes, name: bytes) -> bool:
        """Somebody has a message: whether to ask him for it now."""
        if name in self._known or name in self._refused:
            return False
        if name in self._wanted:
            if len(self._wanted[name].sources) < _MAX_SOURCES:
                self._wanted[name].sources.setdefault(sender)
            return False
        self._wanted[name] = _Wanted(self._clock.now_s(), {sender: None})
        if len(self._wanted) > _MAX_WANTED:
            self._wanted.popitem(last=False)
        return True

    def overdue(self, neighbours: Container[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Who to ask next for what did not come, and for which message."""
        now_s = self._clock.now_s()
        for name, wanted in list(self._wanted.items()):
            if now_s - wanted.asked_s < WANT_S:
                continue
            here = [peer for peer in wanted.sources if peer in neighbours]
            if not here or wanted.tries >= _MAX_TRIES:
                del self._wanted[name]
                continue
            here.append(here.pop(0))
            wanted.asked_s, wanted.sources, wanted.tries = now_s, dict.fromkeys(here), wanted.tries + 1
            yield here[0], name

    def asked(self, name: bytes) -> Push | None:
        """A message that a neighbour wants, if it is still here."""
        self._expire()
        kept = self._kept.get(name)
        return kept.push if kept else None

    def offers(self) -> list[Have]:
        """What a new neighbour is told of."""
        self._expire()
        return [Have(name) for name, kept in self._kept.items() if kept.offered]

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self._topics.values():
            subscription.close()
        self._topics.clear()

    def _onward(self, push: Push, offered: bool) -> Push | Have:
        if len(push.data) <= EAGER_BYTES:
            return push
        name = message_id(push.topic, push.data)
        if known := self._kept.pop(name, None):
            self._kept_bytes -= len(known.push.data)
        self._kept[name] = _Kept(push, self._clock.now_s() + KEPT_S, offered)
        self._kept_bytes += len(push.data)
        self._expire()
        return Have(name)

    def _expire(self) -> None:
        now_s = self._clock.now_s()
        while self._kept:
            kept = next(iter(self._kept.values()))
            if kept.until_s > now_s and self._kept_bytes <= KEPT_BYTES:
                break
            self._kept.popitem(last=False)
            self._kept_bytes -= len(kept.push.data)
