"""Attacks as code, by name: what each does, what should stop it, and which of the honest nodes' refusals show that.

An attacker is a node whose outgoing side is altered: what it answers (`minds.py`), or what it announces and serves
(`tampering.py`). `disarm` is the other side: an honest node without the checks that can be switched off, to see what
they are good for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waggle.core.errors import ConfigError
from waggle.core.types import Admission, Task, TaskRef, Verdict
from waggle.lab import minds, tampering
from waggle.net.transport import Ruling, Transport
from waggle.node.evaluate import Grades
from waggle.node.node import Node
from waggle.swarm.seen import Mark, Seen

Claims = set[tuple[TaskRef, str]]
SYBIL_KEYS = 8


@dataclass(frozen=True)
class Attack:
    """Example: `ATTACKS["replay"]`."""

    name: str
    does: str
    stopped_by: str
    reasons: tuple[str, ...] = ()
    """Refusals that it meets where nodes defend themselves; none where it keeps to the rules."""
    mind: Callable[[int, bytes, Claims], minds.Knowing] = minds.Knowing
    transport: Callable[[Transport, int], Transport] | None = None
    exchange: Callable[[Node], tampering.Crooked] | None = None
    keys: int = 1
    """Keys of each attacker."""


_ALL = (
    Attack(
        "wrong-truth",
        "answers other questions than were asked, and would call that right",
        "answers are graded by the receiver; a group without one right answer has no signal and is not drawn",
        mind=minds.WrongTruth,
    ),
    Attack(
        "malformed",
        "sends broken bytes beside its announcements and in every other answer",
        "strict decoding, and a digest for everything that is pulled",
        ("schema", "signature"),
        transport=tampering.Malformed,
    ),
    Attack(
        "oversized",
        "announces more than anybody reads and answers with frames that unpack to more than anybody takes",
        "limits that are checked before anything is unpacked",
        ("too-large",),
        transport=tampering.Oversized,
    ),
    Attack(
        "other-group-sizes",
        "sends groups of one answer and of eighty",
        "the charter's group size",
        ("group-size",),
        mind=minds.OtherSizes,
    ),
    Attack(
        "copied-experience",
        "signs others' answers as its own",
        "questions are dealt to each author, and answers that came before are told",
        ("not-drawn",),
        exchange=tampering.Copying,
    ),
    Attack(
        "lying-logprobs",
        "says that its answers were next to impossible, so that they weigh more",
        "log-probabilities that sampling does not meet are refused; the loss bounds what the others weigh",
        ("logprobs",),
        mind=minds.LyingLogprobs,
    ),
    Attack(
        "long-answers",
        "gives right answers that are needlessly long",
        "the family's most tokens and the charter's most characters; text below both is taken in",
        ("tokens", "too-long"),
        mind=minds.LongAnswers,
    ),
    Attack(
        "planted-in-context",
        "gives right answers with a foreign text in their working",
        "nothing here: the answer is right; what the receiver then says is measured",
        mind=minds.PlantedInContext,
    ),
    Attack(
        "planted-out-of-context",
        "gives right answers with a foreign text behind them",
        "the whole answer is graded, in worked families all that follows the last `Answer:`",
        mind=minds.PlantedOutOfContext,
    ),
    Attack(
        "sybil",
        f"answers with {SYBIL_KEYS} keys and one mind, as little right as keeps a group wanted",
        "authors take turns when groups are chosen and lose places when the pool is full: its part is that of its keys",
        mind=minds.OneMind,
        keys=SYBIL_KEYS,
    ),
    Attack(
        "replay",
        "sends again what others announced and what it announced itself",
        "an announcement counts from its author alone, each once and only while it is fresh",
        ("signature",),
        transport=tampering.Replaying,
    ),
    Attack(
        "flooding",
        f"announces every round {tampering.FLOOD} times",
        "what one neighbour tells between two looks is bounded, and a group is pulled once",
        ("too-many",),
        exchange=tampering.Flooding,
    ),
)
ATTACKS = {attack.name: attack for attack in _ALL}
"""All attacks by name."""

LAX = Admission(10**9, 256, 100_000, 1 << 20, 10**9)
"""A charter's rules that refuse next to nothing."""
LAX_SETTINGS = ("share.sampler=top_reward",)


def find(name: str) -> Attack:
    """The attack of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ATTACKS:
        raise ConfigError(f"there is no attack {name!r}; `waggle simulate --list` names them: {', '.join(ATTACKS)}")
    return ATTACKS[name]


class Believing:
    """A grader that believes what attackers say of their answers."""

    def __init__(self, grader: Grades, claims: Claims) -> None:
        self._grader, self._claims = grader, claims

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """Verdicts of completions, in order."""
        verdicts = self._grader.grade(items)
        claimed = [(task.ref, text) in self._claims for task, text in items]
        return [Verdict(1.0) if claim else verdict for claim, verdict in zip(claimed, verdicts, strict=True)]


class _Open(tampering.Crooked):
    """An exchange that reads whatever it is sent."""

    def _ruling(self, sender: bytes, data: bytes) -> Ruling:
        return Ruling.DELIVER


class _Blind(Seen):
    """A memory that tells no copies and no repetitions; the very same body is still pulled once."""

    def has_drawn(self, draw: bytes) -> bool:
        return False

    def first(self, answers: bytes) -> Mark | None:
        return None

    def latest(self, author: bytes) -> Mark | None:
        return None


def disarm(node: Node, claims: Claims) -> None:
    """Take from a node what can be taken: its own grading of claims, who was dealt what, signatures, copies, tokens."""
    node.grader = Believing(node.grader, claims)
    node.exchange = _Open(node)
    view = node.view
    view.verify = lambda peer, data, signature: True
    view.is_drawn = lambda ref, author: True
    view.spells = lambda completion: True
    view.max_groups_per_round = 4096
    view.seen = _Blind()
