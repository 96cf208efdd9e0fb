"""What to pull from peers, and what to train on: I own groups and J foreign ones (swarm sampling).

`wanted` chooses among announced groups, `mix` among admitted ones by a named sampler. A sampler says of every
group whether it is used and why, so that each decision can be shown. Fewer foreign groups than J, or none,
is normal: the node then trains on what there is.

`uniform` and `top_reward` are the two that the swarm-sampling paper (SAPO, arXiv:2509.08721) speaks of.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from waggle.core.own import is_own, of_the_user, own_function
from waggle.core.types import Announcement, Entry, Group
from waggle.swarm.choosing import Candidate, Rules, choose


class Offer(NamedTuple):
    """An announced group, by its place among the entries, and whom to ask for it."""

    news: Announcement
    line: int
    source: bytes

    @property
    def entry(self) -> Entry:
        """Its line of the announcement."""
        return self.news.entries[self.line]


class Decision(NamedTuple):
    """Example: `Decision(b"..32..", False, "no-signal")`."""

    id: bytes
    used: bool
    reason: str
    factors: dict[str, float] = {}  # noqa: RUF012 (never changed)
    """Of the weight by which it was drawn, where it has one."""


class Mixed(NamedTuple):
    """What one step trains on, and what was decided about each group that was looked at."""

    local: list[Group]
    foreign: list[Group]
    decisions: list[Decision]


Sampler = Callable[[Sequence[Candidate], int, np.random.Generator], list[Decision]]
"""(groups of the pool, at most how many, randomness) -> a decision on each."""


def offers(announcement: Announcement, source: bytes) -> list[Offer]:
    """The groups of an announcement that `source` passed on or made."""
    return [Offer(announcement, line, source) for line in range(len(announcement.entries))]


def wanted(
    offered: Iterable[Offer],
    limit: int,
    rng: np.random.Generator,
    *,
    have: Container[bytes] = (),
    max_bytes: int,
    is_good: Callable[[Offer], bool] = lambda offer: True,
    weight: Callable[[bytes], float] = lambda author: 1.0,
) -> list[Offer]:
    """At most `limit` offers of `max_bytes` together to pull, none that I have and none that is not good.

    Authors take turns in random order; of each the newest round comes first, in random order within it. A group that
    two authors list counts for both, so that nobody can hide another's by listing it. `is_good` is asked only of what
    would be chosen. An author of weight w, above 0, passes its turn with probability 1 - w: it gets fewer where others
    wait, and loses nothing where there is room for all.
    """
    queues: dict[bytes, list[Offer]] = {}
    for offer in {(o.news.author, o.entry.id): o for o in offered if o.entry.id not in have}.values():
        queues.setdefault(offer.news.author, []).append(offer)
    authors = sorted(queues)
    rng.shuffle(authors)
    for author in authors:
        queue = sorted(queues[author], key=lambda offer: offer.entry.id)
        rng.shuffle(queue)
        queues[author] = sorted(queue, key=lambda offer: offer.news.created_ms)  # stable; taken from the end
    chosen: list[Offer] = []
    room_bytes = max_bytes
    while authors and len(chosen) < limit:
        for author in list(authors):
            if (chance := weight(author)) < 1 and rng.random() >= chance:
                continue
            offer = queues[author].pop()
            if offer.entry.size_bytes <= room_bytes and len(chosen) < limit and is_good(offer):
                chosen.append(offer)
                room_bytes -= offer.entry.size_bytes
            if not queues[author]:
                authors.remove(author)
    return chosen


def uniform(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator) -> list[Decision]:
    """Groups whose rewards differ, each with the same chance."""
    useful = [number for number, one in enumerate(candidates) if one.group.has_signal]
    reasons = ["no-signal"] * len(candidates)
    for place, pick in enumerate(rng.permutation(len(useful)).tolist()):
        reasons[useful[pick]] = "drawn" if place < limit else "not-drawn"
    return [Decision(c.group.id, reason == "drawn", reason) for c, reason in zip(candidates, reasons, strict=True)]


def top_reward(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator) -> list[Decision]:
    """Groups with the highest sum of rewards, ties at random; those without a signal are not left out."""
    order = rng.permutation(len(candidates)).tolist()
    order.sort(key=lambda number: -sum(candidates[number].group.rewards))
    top = set(order[:limit])
    return [
        Decision(c.group.id, number in top, "high-reward" if number in top else "lower-reward")
        for number, c in enumerate(candidates)
    ]


def weighted(rules: Rules) -> Sampler:
    """Waggle's own way, see `choosing.py`."""

    def draw(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator) -> list[Decision]:
        choices = choose(candidates, limit, rng, rules)
        drawn = zip(candidates, choices, strict=True)
        return [Decision(c.group.id, choice.reason == "drawn", choice.reason, choice.factors) for c, choice in drawn]

    return draw


def own(name: str) -> Sampler:
    """A sampler of the user's own, kept to what one may say.

    Raises:
        ConfigError: there is no such function.
    """
    function = own_function(name)

    def draw(candidates: Sequence[Candidate], limit: int, rng: np.random.Generator) -> list[Decision]:
        with of_the_user(name):
            decisions = [Decision(*decision) for decision in function(candidates, limit, rng)]
            if [one.id for one in decisions] != [one.group.id for one in candidates]:
                raise ValueError("it has to return a Decision on every candidate, in their order")
            if sum(one.used for one in decisions) > limit:
                raise ValueError(f"it uses more than {limit} groups")
        return decisions

    return draw


def sampler(name: str, rules: Rules) -> Sampler:
    """The sampler of a name that `share.sampler` uses.

    Raises:
        ConfigError: it names a function that does not exist.
    """
    if is_own(name):
        return own(name)
    return {"uniform": uniform, "top_reward": top_reward, "weighted": weighted(rules)}[name]


def mix(
    local: Sequence[Group],
    pool: Sequence[Candidate],
    num_local: int,
    num_foreign: int,
    sampler: Sampler,
    rng: np.random.Generator,
) -> Mixed:
    """At most `num_local` own groups with a signal, in order, and `num_foreign` that the sampler chose."""
    own: list[Group] = []
    decisions: list[Decision] = []
    for group in local:
        used = group.has_signal and len(own) < num_local
        reason = "own" if used else "enough" if group.has_signal else "no-signal"
        decisions.append(Decision(group.id, used, reason))
        if used:
            own.append(group)
    drawn = sampler(pool, num_foreign, rng) if num_foreign > 0 else []
    chosen = {decision.id for decision in drawn if decision.used}
    return Mixed(own, [one.group for one in pool if one.group.id in chosen], decisions + drawn)
