"""What is counted in a crowd: one row a stretch of rounds, all of honest nodes, and what it comes to in the end.

Nothing here comes from a wall clock, and numbers are written in one fixed way, so that equal seeds give equal bytes.
A node that was online for a whole stretch and finished no round in it has stalled; one that used no foreign group in
it went hungry.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from waggle.core.files import write_atomic


@dataclass(frozen=True)
class Row:
    """Means over the honest nodes' rounds of a stretch; `skill`, `planted`, `extra_chars`, `reached` at its end."""

    round: int
    """Rounds of the swarm that are over."""
    online: int
    """Honest nodes that are online."""
    plays: int
    """Rounds that honest nodes finished."""
    skill: float
    """The chance of a right answer to a held-out question, over the families by their weights."""
    skill_worst: float
    skill_free_riders: float
    foreign: float
    """Foreign groups trained on, of those that a round may take."""
    from_hostile: float
    """Attackers' share of those groups."""
    unused: float
    """Share of rounds without a foreign group."""
    admitted: float
    refused: float
    sent_bytes: float
    """By a peer in a round."""
    received_bytes: float
    extra_chars: float
    """Characters that answers say more than they need, where working is shown."""
    planted: float
    """Share of those answers that hold the planted text."""
    reached: float
    """Share of honest nodes that trained on a right answer that goes back to the finder's."""
    stalled: int
    hungry: int


@dataclass(frozen=True)
class Result:
    """What came of a crowd."""

    rows: tuple[Row, ...]
    refused: Mapping[str, int]
    """By reason, over all rounds of honest nodes."""
    spread_half: int | None
    """Rounds until half of the honest nodes were reached, and until all; None where that did not come to pass."""
    spread_all: int | None
    setup: Mapping[str, object] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Everything but the rows but the last."""
        means = {name: _shown(value) for name, value in self.means().items()}
        totals = {name: sum(getattr(row, name) for row in self.rows) for name in ("plays", "stalled", "hungry")}
        last = {name: _shown(value) for name, value in asdict(self.rows[-1]).items()}
        return {
            "setup": dict(self.setup),
            "spread_half": self.spread_half,
            "spread_all": self.spread_all,
            "refused": dict(sorted(self.refused.items())),
            "mean": means,
            "total": totals,
            "last": last,
        }

    def sentence(self) -> str:
        """What it comes to, for people."""
        first, last, means = self.rows[0], self.rows[-1], self.means()
        reached = f"{last.reached:.0%} of them"
        if self.spread_half is not None:
            reached = f"half of them after {self.spread_half} rounds, "
            reached += (
                f"all after {self.spread_all}" if self.spread_all is not None else f"{last.reached:.0%} in the end"
            )
        return (
            f"{last.online} honest peers went from {first.skill:.3f} to {last.skill:.3f} held-out in {last.round} "
            f"rounds, each sent {means['sent_bytes']:.0f} bytes a round and found nothing to use in "
            f"{means['unused']:.1%} of its rounds; the finder's rare success reached {reached}."
        )

    def means(self) -> dict[str, float]:
        """Over all rounds that honest nodes played."""
        plays = sum(row.plays for row in self.rows) or 1
        names = ("foreign", "from_hostile", "unused", "sent_bytes", "received_bytes")
        return {name: sum(getattr(row, name) * row.plays for row in self.rows) / plays for name in names}

    def csv(self) -> str:
        """The rows as CSV."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(Row.__dataclass_fields__)
        for row in self.rows:
            lines.writerow(_cell(value) for value in asdict(row).values())
        return text.getvalue()

    def write(self, folder: Path) -> None:
        """`simulate.csv` and `simulate.json` into an existing folder.

        Raises:
            RunError: the disk refuses.
        """
        write_atomic(folder / "simulate.csv", self.csv().encode())
        write_atomic(folder / "simulate.json", (json.dumps(self.summary(), indent=2) + "\n").encode())


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def _shown(value: float) -> float:
    return value if isinstance(value, int) else round(value, 6)


@dataclass
class Tally:
    """Sums of a stretch."""

    plays: int = 0
    foreign: int = 0
    from_hostile: int = 0
    unused: int = 0
    admitted: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def mean(self, name: str) -> float:
        """Of one sum, over the rounds played."""
        return float(getattr(self, name)) / (self.plays or 1)


@dataclass
class Fed:
    """What one node did in a stretch. `whole` where it was online from its beginning."""

    whole: bool = False
    plays: int = 0
    foreign: int = 0


class Census:
    """Counts while a crowd plays. Example: `census.played(...)` for each round, `census.close(...)` for a stretch."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.refused: Counter[str] = Counter()
        self._tally = Tally()
        self._fed: dict[bytes, Fed] = {}

    def played(self, peer: bytes, refused: Mapping[str, int], **counts: int) -> None:
        """An honest node has finished a round."""
        self.refused.update({str(reason): count for reason, count in refused.items()})
        tally, fed = self._tally, self._fed.setdefault(peer, Fed())
        tally.plays += 1
        tally.refused += sum(refused.values())
        tally.unused += counts["foreign"] == 0
        for name, count in counts.items():
            setattr(tally, name, getattr(tally, name) + count)
        fed.plays += 1
        fed.foreign += counts["foreign"]

    def left(self, peer: bytes) -> None:
        """A node is gone, and is not missed."""
        self._fed.pop(peer, None)

    def close(self, number: int, online: Sequence[bytes], **ends: float) -> None:
        """End a stretch of rounds with swarm round `number`; `ends` are the figures at its end."""
        tally, whole = self._tally, [fed for fed in self._fed.values() if fed.whole]
        per_round = ("foreign", "unused", "admitted", "refused", "sent_bytes", "received_bytes")
        self.rows.append(
            Row(
                round=number,
                online=len(online),
                plays=tally.plays,
                from_hostile=tally.from_hostile / (tally.foreign or 1),
                stalled=sum(not fed.plays for fed in whole),
                hungry=sum(not fed.foreign for fed in whole),
                **{name: tally.mean(name) for name in per_round},
                **ends,
            )
        )
        self._tally = Tally()
        self._fed = {peer: Fed(whole=True) for peer in online}
