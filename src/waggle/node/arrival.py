"""What comes in from outside in a round: announcements, experience by network and by file, who pulled from me.

hear -> choose what to pull -> pull -> screen -> grade -> admit, or refuse with a reason

Everything that peers do to a node's learning ends in one `Arrived`, with what its trust in them is drawn from, so that
a round can be played again on what arrived then (`replaying.py`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from waggle.core.errors import DecodeError
from waggle.core.keys import peer_name
from waggle.core.rng import rng_for
from waggle.node.node import Node
from waggle.node.state import Admitted, Deed
from waggle.swarm.admission import (
    Reason,
    Refusal,
    Screened,
    check_quarantine,
    check_signature,
    finish,
    screen,
    screen_announcement,
)
from waggle.swarm.sampling import Offer, offers, wanted
from waggle.swarm.seen import Mark

PULL_BYTES = 1 << 20
"""Most announced bytes that a round pulls."""


@dataclass
class Arrived:
    """What came from peers in a round."""

    admitted: list[Admitted] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    deeds: list[Deed] = field(default_factory=list)
    """What peers are to be judged by, in its order."""
    took: list[bytes] = field(default_factory=list)
    """Who pulled from me, once for each time."""


async def gather(node: Node, number: int, marks: list[Mark]) -> Arrived:
    """What peers offer and what came by file, screened and graded. `marks` are those of the round so far."""
    arrived = Arrived(marks=marks)
    now_ms = int(node.clock.now_s() * 1000)
    found: list[Offer] = []
    for sender, data in await node.exchange.hear():
        news = screen_announcement(data, sender, node.view, now_ms)
        if isinstance(news, Refusal):
            refuse(node, arrived, sender, news)
        elif not node.hear_of(news.author, news.created_ms):
            continue
        elif refusal := check_quarantine(news.author, node.view):
            refuse(node, arrived, sender, refusal)
        else:
            judge(node, arrived, Deed(news.author, "announced"))
            found += offers(news, sender)
    pulled = await pull(node, number, arrived, found)
    screened: list[Screened] = []
    for source, data in (*pulled, *unpacked(node, arrived)):
        result = screen(data, node.view, now_ms)
        if isinstance(result, Refusal):
            refuse(node, arrived, source, result)
        else:
            screened.append(result)
            arrived.marks.append(result.mark)
    admit(node, arrived, screened)
    for (source, reason), num in node.exchange.take_refused().items():
        arrived.refused[reason] += num
        judge(node, arrived, Deed(source, reason))  # a flood counts as one
    arrived.took = node.exchange.take_takers()
    return arrived


async def pull(node: Node, number: int, arrived: Arrived, found: Sequence[Offer]) -> list[tuple[bytes, bytes]]:
    """Experience of what was found, as much as a round may pull: who sent it, and its bytes."""
    limit = 2 * node.config.round.foreign
    rng = rng_for(node.config.run.seed, "pull", node.key.id, number)
    found = [offer for offer in found if not node.exchange.is_asked(offer.source)]
    have = {offer.entry.id for offer in found if node.view.seen.has(offer.entry.id)}

    signed, liars = set[int](), set[bytes]()

    def is_signed(offer: Offer) -> bool:
        if offer.source in liars:  # refused once, however many lists it sent
            return False
        if id(offer.news) not in signed:
            if refusal := check_signature(offer.news, node.view):
                refuse(node, arrived, offer.source, refusal)
                liars.add(offer.source)
                return False
            signed.add(id(offer.news))
        return True

    chosen = wanted(found, limit, rng, have=have, max_bytes=PULL_BYTES, is_good=is_signed, weight=node.weight)
    wishes: dict[bytes, list[Offer]] = {}
    for offer in chosen:
        wishes.setdefault(offer.source, []).append(offer)
    return await node.exchange.pull_all(wishes)


def unpacked(node: Node, arrived: Arrived) -> list[tuple[bytes, bytes]]:
    """Experience of a parcel that waits in the inbox, from nobody; as much as a round may pull."""
    try:
        parcel = node.archive.take_parcel(2 * node.config.round.foreign, PULL_BYTES)
    except DecodeError as error:
        refuse(node, arrived, b"", Refusal(Reason(error.reason), f"a damaged parcel: {error}"))
        return []
    if parcel and parcel.charter != node.taskset.digest:
        refuse(node, arrived, b"", Refusal(Reason.OTHER_CHARTER, "a parcel of another swarm"))
        return []
    return [(b"", data) for data in parcel.experiences] if parcel else []


def admit(node: Node, arrived: Arrived, screened: Sequence[Screened]) -> None:
    """Grade what passed screening, all in one call, and keep what can be graded."""
    verdicts = iter(node.grader.grade([(s.task, text) for s in screened for text in s.texts]))
    for one in screened:
        group = finish(one, [next(verdicts) for _ in one.texts], node.view)
        if isinstance(group, Refusal):
            refuse(node, arrived, one.body.author, group)
        else:
            judge(node, arrived, Deed(group.author, "admitted"))
            arrived.admitted.append(Admitted(group, one.size_bytes))


def refuse(node: Node, arrived: Arrived, sender: bytes, refusal: Refusal) -> None:
    """Count a refusal by its reason and tell who is to blame."""
    arrived.refused[refusal.reason] += 1
    who = refusal.author or sender
    if who:
        judge(node, arrived, Deed(who, str(refusal.reason)))
    peer = peer_name(who) if who else "a file"
    node.events.emit("refused", peer=peer, reason=str(refusal.reason), detail=refusal.detail[:200])


def judge(node: Node, arrived: Arrived, deed: Deed) -> None:
    """Let a deed count for or against its peer."""
    arrived.deeds.append(deed)
    match deed.kind:
        case "announced":
            node.trust.contribute(deed.who)
        case "admitted":
            node.trust.admit(deed.who)
        case reason:
            node.trust.refuse(deed.who, Reason(reason))
