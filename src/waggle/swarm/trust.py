"""What I think of each author, from what I measured myself: whose turn to pull is skipped, who is left out for a while.

Nothing that peers say of each other is heard. An author's weight is the mean of a Beta posterior of its valid share,
times a factor for copies, times one for usefulness: how my held-out rate moved after I trained on its groups, as the
posterior mean of a bandit's arm, so that a few noisy evaluations move little. Too many refusals of the hostile kind
lead to quarantine, twice as long each time; who comes out begins with little weight and earns the rest.

Tit for tat (after Cohen 2003, BitTorrent) is by turns and not by amounts: how many of a peer's pulls were matched by
a round that it announced. Decay is by rounds of mine, for pulls by those of the peer, and never by the clock.

Left out: a new key is a new author, whose first turns cost me what a newcomer's do; and an author who announces what
he does not give counts as one who gives until his answers are refused.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from waggle.core.types import Count, Name, Noun, PeerId
from waggle.swarm.admission import Reason

MAX_AUTHORS = 4096
DECAY = 0.98
"""Of every count, a round of mine: half is forgotten after 34 rounds."""
GOOD, BAD = 8.0, 2.0
"""Prior of the valid share: a newcomer counts as one of whose ten groups eight were valid."""
FLOOR = 0.05
"""The least weight: nobody is never asked."""
MAX_HOSTILE = 4.0
"""Hostile refusals, decayed, beyond which an author is put in quarantine."""
NO_QUARANTINE = math.inf
"""The same, where nobody is to be put there."""
FIRST_ROUNDS, MOST_ROUNDS = 16, 1024
"""Rounds of mine that the first quarantine lasts, and the longest."""
DOUBT = 32.0
"""Invalid groups that a released author is credited with; they decay as all counts do."""
FORGIVEN = 0.5
"""Doubt below which earlier quarantines no longer count; some 206 rounds after the release."""
PRIOR_EVALUATIONS = 8.0
"""Evaluations without any movement that usefulness begins with."""
GAIN_SCALE = 0.1
"""Mean movement of the held-out rate, an evaluation, that would double a weight."""
LEAST_USEFUL, MOST_USEFUL = 0.5, 1.5
WINDOW = 64.0
"""Pulls of a peer over which its giving and taking is remembered."""
GRACE = 6.0
"""Turns in which every peer is taken to have given: a newcomer is served in full so often, and once more.

A model so weak that its groups seldom have a signal has nothing to announce; it cannot be told from a free rider, and
the floor is there for it.
"""
FAIR = 0.5
"""Share of its turns in which a peer that is served in full gives something."""


class Fault(StrEnum):
    """What a refusal says of who is to blame: its author where a signature proves that, else its sender."""

    HOSTILE = "hostile"
    """No honest node of any release does this by accident: it counts towards quarantine."""
    SUSPICIOUS = "suspicious"
    """A fault of software or settings, or a lie; it costs weight only."""
    COPY = "copy"
    """Its author may be the thief or the victim; it costs weight only."""
    INNOCENT = "innocent"
    """Races, distance, clocks, and what is my own fault."""


FAULTS: dict[Reason, Fault] = {
    Reason.TOO_LARGE: Fault.SUSPICIOUS,
    Reason.VERSION: Fault.INNOCENT,
    Reason.SCHEMA: Fault.SUSPICIOUS,
    Reason.NOT_CANONICAL: Fault.SUSPICIOUS,
    Reason.COMPRESSION: Fault.SUSPICIOUS,
    Reason.FRAMING: Fault.SUSPICIOUS,
    Reason.TOO_MANY: Fault.SUSPICIOUS,
    Reason.OTHER_CHARTER: Fault.SUSPICIOUS,
    Reason.NOT_MEMBER: Fault.INNOCENT,
    Reason.OWN: Fault.INNOCENT,  # one key on two machines
    Reason.SIGNATURE: Fault.HOSTILE,  # of the sender: what he passes for an author's, or answers that he did not list
    Reason.STALE: Fault.INNOCENT,
    Reason.FUTURE: Fault.INNOCENT,
    Reason.DUPLICATE: Fault.INNOCENT,
    Reason.QUOTA: Fault.SUSPICIOUS,
    Reason.EPOCH: Fault.SUSPICIOUS,
    Reason.REPEAT: Fault.SUSPICIOUS,  # a round that was announced, killed, and answered otherwise when it was resumed
    Reason.FAMILY: Fault.HOSTILE,
    Reason.NOT_DRAWN: Fault.HOSTILE,
    Reason.GROUP_SIZE: Fault.HOSTILE,
    Reason.SAMPLING: Fault.HOSTILE,
    Reason.BLOB: Fault.HOSTILE,
    Reason.TOO_LONG: Fault.SUSPICIOUS,
    Reason.LOGPROBS: Fault.SUSPICIOUS,
    Reason.TASK: Fault.INNOCENT,  # my generator is of another version
    Reason.HELD_OUT: Fault.HOSTILE,
    Reason.TOKENS: Fault.SUSPICIOUS,  # tokenizers of two releases
    Reason.COPY: Fault.COPY,
    Reason.UNGRADED: Fault.SUSPICIOUS,
    Reason.QUARANTINED: Fault.INNOCENT,  # it is paid for already
}


class Standing(Noun, frozen=True):
    """What I know of one author. Example: `Standing(b"..32..", admitted=11.3, taken=4.0, contributed=4.0)`."""

    author: PeerId
    admitted: float = 0.0
    refused: float = 0.0
    """Refusals of the hostile kind."""
    copies: float = 0.0
    implausible: float = 0.0
    """Refusals that are suspicious."""
    used: float = 0.0
    """Groups that I trained on since the last evaluation."""
    gain: float = 0.0
    """Movement of the held-out rate that it is credited with, summed over evaluations by its share of the groups."""
    judged: float = 0.0
    """Those shares, summed."""
    contributed: float = 0.0
    """Rounds that it announced to me, in its last `WINDOW` pulls."""
    taken: float = 0.0
    """Those pulls."""
    doubt: float = 0.0
    quarantined_until: Count = 0
    """The round of mine that ends its quarantine; 0 where it is in none."""
    times: Count = 0
    """Quarantines so far that are not forgiven."""
    reason: Name = ""
    """Of the last hostile refusal."""

    @property
    def mean_gain(self) -> float:
        """Posterior mean of the movement in an evaluation, had all foreign groups been its own."""
        return self.gain / (self.judged + PRIOR_EVALUATIONS)


class Change(NamedTuple):
    """Example: `Change("quarantined", b"..32..", "not-drawn", 37)`."""

    event: str
    author: bytes
    reason: str
    until_round: int


class Trust:
    """The standings of all authors. Example: `trust = Trust(); trust.admit(author); trust.weight(author)`.

    Args:
        max_hostile: hostile refusals, decayed, beyond which an author is put in quarantine.
        max_authors: authors remembered; the longest silent is forgotten first, whoever is in quarantine last.
    """

    def __init__(self, max_hostile: float = MAX_HOSTILE, max_authors: int = MAX_AUTHORS) -> None:
        self._max_hostile, self._max_authors = max_hostile, max_authors
        self._standings: OrderedDict[bytes, Standing] = OrderedDict()

    def __len__(self) -> int:
        return len(self._standings)

    def standing(self, author: bytes) -> Standing:
        """What is known of an author; a newcomer's where that is nothing."""
        return self._standings.get(author) or Standing(author)

    def admit(self, author: bytes) -> None:
        """A group of this author could be graded."""
        one = self.standing(author)
        self._hear(replace(one, admitted=one.admitted + 1))

    def refuse(self, author: bytes, reason: Reason) -> None:
        """Something was refused for which this author, or sender, is to blame."""
        one = self.standing(author)
        match FAULTS[reason]:
            case Fault.HOSTILE:
                self._hear(replace(one, refused=one.refused + 1, reason=str(reason)))
            case Fault.SUSPICIOUS:
                self._hear(replace(one, implausible=one.implausible + 1))
            case Fault.COPY:
                self._hear(replace(one, copies=one.copies + 1))
            case Fault.INNOCENT:
                pass

    def use(self, authors: Iterable[bytes]) -> None:
        """Groups of these authors, one a group, were trained on."""
        for author in authors:
            one = self.standing(author)
            self._hear(replace(one, used=one.used + 1))

    def credit(self, delta: float | None) -> None:
        """My held-out rate moved by this much since the last evaluation; None where there was none before."""
        together = sum(one.used for one in self._standings.values())
        for author, one in self._standings.items():
            if one.used:
                share = one.used / together if delta is not None else 0.0
                moved = one.gain + share * (delta or 0.0)
                self._standings[author] = replace(one, used=0.0, gain=moved, judged=one.judged + share)

    def contribute(self, author: bytes) -> None:
        """This peer announced a round of its own."""
        one = self.standing(author)
        self._hear(replace(one, contributed=min(one.contributed + 1, WINDOW)))

    def take(self, author: bytes) -> None:
        """This peer pulled from me: a turn of its own is over."""
        one, kept = self.standing(author), 1 - 1 / WINDOW
        self._hear(replace(one, contributed=one.contributed * kept, taken=one.taken * kept + 1))

    def weight(self, author: bytes) -> float:
        """Chance that the author is asked where it is its turn, `FLOOR` to 1."""
        one = self.standing(author)
        bad = one.refused + one.implausible + one.doubt
        valid = (one.admitted + GOOD) / (one.admitted + GOOD + bad + BAD)
        original = 1 - one.copies / (one.admitted + one.copies + GOOD)
        useful = min(max(1 + one.mean_gain / GAIN_SCALE, LEAST_USEFUL), MOST_USEFUL)
        return min(max(valid * original * useful, FLOOR), 1.0)

    def share(self, peer: bytes, floor: float) -> float:
        """Share of what it asks for that a peer is given, `floor` to 1."""
        one = self.standing(peer)
        due = (one.contributed + GRACE) / (one.taken + GRACE)
        return max(floor, min(due / FAIR, 1.0))

    def shares(self, floor: float) -> Mapping[bytes, float]:
        """The same of all whose share is not the whole."""
        found = {peer: self.share(peer, floor) for peer in self._standings}
        return {peer: share for peer, share in found.items() if share < 1}

    def quarantined(self, author: bytes) -> str:
        """The reason for which an author is in quarantine, or nothing."""
        one = self._standings.get(author)
        return one.reason if one and one.quarantined_until else ""

    def next_round(self, number: int) -> list[Change]:
        """My round of this number is over: forget a little, put in quarantine, release."""
        changes: list[Change] = []
        for author, one in self._standings.items():
            if 0 < one.quarantined_until <= number:
                changes.append(Change("released", author, one.reason, number))
                one = _released(one)
            elif not one.quarantined_until and one.refused > self._max_hostile:
                until = number + min(FIRST_ROUNDS * 2 ** min(one.times, 16), MOST_ROUNDS)
                changes.append(Change("quarantined", author, one.reason, until))
                one = replace(one, quarantined_until=until, times=one.times + 1)
            self._standings[author] = _faded(one)
        return changes

    def state(self) -> tuple[Standing, ...]:
        """All standings, the longest silent first."""
        return tuple(self._standings.values())

    def restore(self, standings: Iterable[Standing]) -> None:
        """Become what `state` gave."""
        self._standings = OrderedDict((one.author, one) for one in standings)

    def _hear(self, one: Standing) -> None:
        self._standings[one.author] = one
        self._standings.move_to_end(one.author)
        if len(self._standings) > self._max_authors:
            others = (author for author, old in self._standings.items() if not old.quarantined_until)
            silent = next(others)  # the one just heard is not in quarantine where all others are
            self._standings.pop(silent if silent != one.author else next(iter(self._standings)))


def _released(one: Standing) -> Standing:
    """A clean count, little trust, and what has nothing to do with the reason."""
    return replace(
        Standing(one.author, gain=one.gain, judged=one.judged, contributed=one.contributed, taken=one.taken),
        doubt=DOUBT,
        times=one.times,
    )


def _faded(one: Standing) -> Standing:
    doubt = one.doubt * DECAY
    return replace(
        one,
        admitted=one.admitted * DECAY,
        refused=one.refused * DECAY,
        copies=one.copies * DECAY,
        implausible=one.implausible * DECAY,
        used=one.used * DECAY,
        gain=one.gain * DECAY,
        judged=one.judged * DECAY,
        doubt=doubt,
        times=one.times if one.quarantined_until or doubt > FORGIVEN else 0,
    )
