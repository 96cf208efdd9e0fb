"""Everything of a node besides its weights: what a checkpoint holds, and what a round adds to it.

A round ends with one journal record. What is stored is what happened (the batch, what was admitted, which
groups were used), so that replaying a record from the checkpoint's state gives the state after it, bit for bit.
New fields are added at the end, with defaults: folders of earlier releases are read as they are (`decode_stored`).
"""

from waggle.core.types import Digest, Experience, Group, Name, Noun, PeerId
from waggle.swarm.dose import Dose
from waggle.swarm.estimates import Estimate
from waggle.swarm.likeness import Like
from waggle.swarm.seen import Mark
from waggle.swarm.trust import Standing
from waggle.tasks.stream import Cursor

MAX_RECORD_BYTES = 1 << 30


class Heard(Noun, frozen=True):
    """Until when I have read an author's announcements, by his own clock."""

    author: PeerId
    created_ms: int


class State(Noun, frozen=True):
    """The small state after a round. Example: `State(lineage=base)` before the first."""

    lineage: Digest
    round: int = 0
    step: int = 0
    cursor: Cursor = Cursor()
    heard: tuple[Heard, ...] = ()
    created_ms: int = 0
    """Time of my last seal; seals never go back in time."""
    best_round: int = 0
    best_rate: float = -1.0
    """The best steering evaluation so far; below 0 before the first."""
    trained_s: float = 0.0
    """Seconds spent in rounds."""
    totals: dict[str, float] = {}  # noqa: RUF012 (msgspec copies it)
    estimates: tuple[Estimate, ...] = ()
    """Of my own success."""
    last_rate: float = -1.0
    """The last steering evaluation; below 0 before the first."""
    standings: tuple[Standing, ...] = ()
    """What is thought of authors, the longest silent first."""
    dose: Dose = Dose()
    """How much of peers' experience is taken."""
    likes: tuple[Like, ...] = ()
    """How like mine authors' right answers are."""
    best_lineage: Digest = bytes(32)
    """Of the weights of `best_round`; zeros before the first evaluation."""
    start_bits: float = 0.0
    """Bits a byte of plain text before the first round; 0 where nobody looks."""


class Admitted(Noun, frozen=True):
    """A foreign group that came in, and its size on the wire."""

    group: Group
    size_bytes: int


class Deed(Noun, frozen=True):
    """What judges a peer: `announced`, `admitted`, or a reason for a refusal. Example: `Deed(eve, "not-drawn")`."""

    who: PeerId
    kind: Name


class Record(Noun, frozen=True):
    """One round in the journal. `metrics` is its line of metrics.jsonl."""

    state: State
    batch: bytes
    sealed: tuple[Experience, ...]
    admitted: tuple[Admitted, ...]
    marks: tuple[Mark, ...]
    used: tuple[Digest, ...]
    metrics: str
    deeds: tuple[Deed, ...] = ()
    took: tuple[PeerId, ...] = ()
    went_back: bool = False
    """Whether the round began with the return to the best weights."""

    @property
    def arrival(self) -> "Arrival":
        """What of it came from outside."""
        return Arrival(self.state.round, self.admitted, self.deeds, self.took)


class Arrival(Noun, frozen=True):
    """What came in with a round, all that playing it again needs; fields as in `node.arrival.Arrived`."""

    round: int
    admitted: tuple[Admitted, ...]
    deeds: tuple[Deed, ...]
    took: tuple[PeerId, ...]


class Sealed(Noun, frozen=True):
    """A round on offer."""

    round: int
    experiences: tuple[Experience, ...]


class Snapshot(Noun, frozen=True):
    """What a checkpoint holds besides weights and optimiser."""

    state: State
    base: Digest
    pool: bytes
    seen: bytes
    window: tuple[Sealed, ...]
