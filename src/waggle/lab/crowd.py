"""A crowd: many nodes with scripted minds in one process, on the in-memory network and a fake clock.

Everything between draw and record is the node's own code (`node.round.play`). Scripted are the minds, and what happens
to the swarm: who joins and leaves, delays, losses, a partition, free riders, attackers. A round of the swarm is
`ROUND_S` of fake time, in which a node plays one round of its own on average; who is faster plays more. Nodes do not
wait for each other: each sleeps until its round is over and then plays it, while others are in the midst of theirs.
One honest node, the finder, has skill in a family where all others have none.
"""

import asyncio
import gc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import log

from waggle.core.clock import FakeClock
from waggle.core.codec import digest
from waggle.core.config import Config, load
from waggle.core.errors import ConfigError
from waggle.core.events import NoEvents
from waggle.core.keys import Key
from waggle.core.rng import rng_for
from waggle.core.types import Admission, Family, Peer
from waggle.lab import attacks, jumping
from waggle.lab.census import Census, Result
from waggle.lab.memo import Fresh, Memo, Remembering
from waggle.lab.minds import PLANTED
from waggle.net.memory import MemoryNetwork
from waggle.net.tasks import Tasks
from waggle.net.transport import Transport
from waggle.node.build import local_key
from waggle.node.evaluate import Grades
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.scripted import ScriptedLearner
from waggle.node.swarm import SPREAD, speed
from waggle.swarm.charter import new_charter
from waggle.swarm.seen import Seen
from waggle.tasks.families import family
from waggle.tasks.grade import Graders

ROUND_S = 60.0
MEAN_SPEED = (SPREAD - 1) / log(SPREAD)
"""Of all nodes; speeds are 1 to `SPREAD`, evenly on a logarithmic scale."""
CHURN_ROUNDS = 10
"""Rounds in which the stated share leaves and as many join."""
SETTINGS = (
    *("model.name=scripted", "eval.every=0", "eval.report=8", "round.local=1", "round.foreign=1", "round.refills=0"),
    *("round.group_size=4", "share.fanout=4", "share.max_lag=8", "share.pool_groups=32", "share.patience_s=5.0"),
)
"""A small round, since there are many: one own and one foreign group of four, told to four neighbours."""
ADMISSION = Admission(max_age_s=600)
SEEN = 512
"""Experiences that a node remembers; ten rounds, after which all is stale, hold at most a fifth of them."""
SKILL, FINDERS, RATE = 0.2, 0.5, 0.1
TOKENIZER = b"one byte, one token, as we like i"[:32]
ALTERED = ("round", "share")
"""Sections of the configuration that a simulation follows."""


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """What the crowd learns: short sums, sums with their working, and what only the finder can do."""
    two = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    three = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    found = {"min_terms": 4, "max_terms": 4, "min_digits": 1, "max_digits": 2}
    return (
        family("chain_sum", two, name="short", shots=1, max_tokens=8, weight=2),
        family("chain_sum", three, name="worked", shots=1, working="sum-steps", max_tokens=256, weight=2),
        family("chain_sum", found, name="found", shots=1, max_tokens=8, weight=2),
    )


@dataclass(frozen=True)
class Setup:
    """What is simulated. Example: `Setup(peers=100, rounds=50, churn=0.3)`."""

    peers: int = 100
    rounds: int = 50
    seed: int = 0
    churn: float = 0.0
    free_riders: float = 0.0
    attack: str = ""
    hostile: int = 0
    latency_s: float = 0.0
    loss: float = 0.0
    partition: bool = False
    undefended: bool = False
    memo: bool = False
    settings: tuple[str, ...] = ()

    def check(self) -> Config:
        """The nodes' configuration.

        Raises:
            ConfigError: something that has no effect, or leaves nobody to look at.
        """
        for setting in self.settings:
            if setting.partition(".")[0].strip() not in ALTERED:
                raise ConfigError(f"--set {setting!r} has no effect in a simulation; [round] and [share] alone do")
        if self.hostile and not self.attack:
            raise ConfigError("--hostile has no effect without --attack; name an attack, see --list")
        if self.attack and not self.hostile:
            raise ConfigError("--attack has no effect with --hostile 0; let at least one be hostile")
        if self.partition and self.rounds < 3:
            raise ConfigError(f"--partition needs at least 3 rounds, not {self.rounds}: before, in and after it")
        if self.num_honest < 2:
            raise ConfigError(
                f"of {self.peers} peers {self.num_hostile} are hostile and {self.num_free_riders} ride free, which "
                "leaves fewer than 2 honest ones; take more --peers"
            )
        lax = attacks.LAX_SETTINGS if self.undefended else ()
        config = load(None, [*SETTINGS, *lax, *self.settings])
        if config.share.publish == "none":
            raise ConfigError("share.publish = 'none' leaves nothing to simulate; --free-riders makes some do so")
        return config

    @property
    def num_hostile(self) -> int:
        """Keys of attackers."""
        return self.hostile * attacks.find(self.attack).keys if self.attack else 0

    @property
    def num_free_riders(self) -> int:
        """Peers who take and do not give."""
        return round(self.free_riders * self.peers)

    @property
    def num_honest(self) -> int:
        """Peers who are neither."""
        return self.peers - self.num_hostile - self.num_free_riders

    @property
    def stretch(self) -> int:
        """Rounds of the swarm in one row."""
        return max(2, self.rounds // 20)


@dataclass
class Seat:
    """One peer: what it is and how far it got."""

    number: int
    kind: str
    """`honest`, `free` or `hostile`."""
    node: Node
    start_s: float
    sent_bytes: int = 0
    received_bytes: int = 0
    life: asyncio.Task[None] | None = field(default=None, repr=False)


class Crowd:
    """A swarm that is simulated. Example: `Crowd(Setup(peers=20, rounds=10)).run()`.

    Args:
        setup: what is simulated.
        watch: called after each round of the swarm with its number.

    Raises:
        ConfigError: see `Setup.check`.
    """

    def __init__(self, setup: Setup, watch: Callable[[int], None] = lambda number: None) -> None:
        self.setup, self.config, self._watch = setup, setup.check(), watch
        self.clock, self.census = FakeClock(), Census()
        self._start_s = self.clock.now_s()
        self.network = MemoryNetwork(setup.seed, self.clock, latency_s=setup.latency_s, loss=setup.loss)
        admission = attacks.LAX if setup.undefended else ADMISSION
        founder = local_key(setup.seed, 0)
        charter = new_charter(founder, "crowd", families(), created_ms=1_700_000_000_000, admission=admission)
        self.taskset = Remembering(charter) if setup.memo else Fresh(charter)
        graders = Graders(families(), workers=0)
        self.memo = Memo(graders) if setup.memo else None
        self.grader: Grades = self.memo or graders
        self.claims: attacks.Claims = set()
        self.seats: dict[bytes, Seat] = {}
        """Who is online, in the order of their coming."""
        self._weights = {digest(one): one.weight for one in families()}
        _, self._worked, self._found = map(digest, families())
        self._reached = {founder.id}
        self._sides: list[list[bytes]] = []
        self._spread: dict[float, int] = {}
        self.num_come, self._owed = 0, 0.0
        self._rng = rng_for(setup.seed, "crowd")
        self._lives = Tasks()

    def run(self) -> Result:
        """Play to the end."""
        collects = gc.isenabled()
        gc.disable()  # it would look through all nodes again and again; what a round leaves is collected after it
        try:
            jumping.run(self._run(), self.clock)
        finally:
            if collects:
                gc.enable()
        setup = asdict(self.setup) | {"settings": list(self.setup.settings)}
        half, whole = self._spread.get(0.5), self._spread.get(1.0)
        return Result(tuple(self.census.rows), dict(self.census.refused), half, whole, setup)

    async def _run(self) -> None:
        setup = self.setup
        kinds = ["honest"] * setup.num_honest + ["free"] * setup.num_free_riders + ["hostile"] * setup.num_hostile
        for kind in kinds:
            await self._join(kind)
        self._close(0)
        for number in range(1, setup.rounds + 1):
            await self._change(number)
            await self.clock.sleep(self._start_s + number * ROUND_S - self.clock.now_s())
            self._note_spread(number)
            if ends := number % setup.stretch == 0 or number == setup.rounds:
                self._close(number)
            self._need_alive()
            gc.collect(2 if ends and setup.churn else 1)  # nodes that left are found by a full search alone
            self._watch(number)
        await self._lives.cancel()
        await self.network.close()

    async def _join(self, kind: str) -> None:
        seat = self._seat(kind)
        me = seat.node.key.id
        side = self._sides[seat.number % 2] if self._sides else list(self.seats)
        there = [peer for peer in side if peer in self.seats]
        known = there[int(self._rng.integers(len(there)))] if there else b""
        if self._sides:
            side.append(me)
            self.network.split(*self._sides)
        await seat.node.start([Peer(known, "memory")] if known else [])
        self.seats[me] = seat
        seat.life = self._lives.begin(self._live(seat))

    def _seat(self, kind: str) -> Seat:
        setup, number = self.setup, self.num_come
        self.num_come += 1
        key = local_key(setup.seed, number)
        attack = attacks.find(setup.attack) if kind == "hostile" else None
        transport: Transport = self.network.attach(key.id)
        if attack and attack.transport:
            transport = attack.transport(transport, setup.seed)
        learner = self._mind(number, attack)
        publish = {"honest": self.config.share.publish, "free": "none", "hostile": "all"}[kind]
        share = self.config.share.model_copy(update={"publish": publish})
        run = self.config.run.model_copy(update={"seed": setup.seed})
        config = self.config.model_copy(update={"share": share, "run": run})
        node = self._node(key, config, learner, transport)
        if attack and attack.exchange:
            node.exchange = attack.exchange(node)
        elif setup.undefended and kind != "hostile":
            attacks.disarm(node, self.claims)
        return Seat(number, kind, node, self.clock.now_s())

    def _node(self, key: Key, config: Config, learner: ScriptedLearner, transport: Transport) -> Node:
        node = Node(key, self.taskset, config, learner, self.grader, transport, self.clock, NoEvents())
        node.view.seen = Seen(SEEN)
        if self.memo:
            node.view.verify = self.memo.verify
        return node

    def _mind(self, number: int, attack: attacks.Attack | None) -> ScriptedLearner:
        if attack:
            return attack.mind(number, TOKENIZER, self.claims)
        starts = {self._found: FINDERS if number == 0 else 0.0}
        return ScriptedLearner(SKILL, RATE, number, TOKENIZER, starts=starts, watched=PLANTED)

    def _need_alive(self) -> None:
        """A node that broke is a bug of ours and ends the simulation."""
        for seat in self.seats.values():
            if seat.life and seat.life.done():
                seat.life.result()

    async def _live(self, seat: Seat) -> None:
        rounds_s = ROUND_S * MEAN_SPEED / speed(self.setup.seed, seat.number)
        begun = rng_for(self.setup.seed, "begun", seat.number).random()  # nobody starts at the stroke of a bell
        for number in itertools.count(1):
            await self.clock.sleep(seat.start_s + (number - begun) * rounds_s - self.clock.now_s())
            report = await play(seat.node)
            if seat.kind == "honest":
                self._count(seat, report)

    def _count(self, seat: Seat, report: Report) -> None:
        me, foreign, counts = seat.node.key.id, report.mixed.foreign, seat.node.exchange.transport.counts
        for group in foreign:
            if group.task.ref.config == self._found and group.author in self._reached and any(group.rewards):
                self._reached.add(me)
        self.census.played(
            me,
            report.arrived.refused,
            foreign=len(foreign),
            from_hostile=sum(self._is_hostile(group.author) for group in foreign),
            admitted=len(report.arrived.admitted),
            sent_bytes=counts["sent_bytes"] - seat.sent_bytes,
            received_bytes=counts["received_bytes"] - seat.received_bytes,
        )
        seat.sent_bytes, seat.received_bytes = counts["sent_bytes"], counts["received_bytes"]

    def _is_hostile(self, author: bytes) -> bool:
        seat = self.seats.get(author)
        return seat is not None and seat.kind == "hostile"

    async def _change(self, number: int) -> None:
        """What happens to the swarm before a round of it."""
        setup = self.setup
        if setup.partition and number == setup.rounds // 3 + 1:
            peers = list(self.seats)
            self._sides = [peers[::2], peers[1::2]]
            self.network.split(*self._sides)
        if setup.partition and number == 2 * setup.rounds // 3 + 1:
            self._sides = []
            self.network.heal()
        self._owed += setup.churn * setup.num_honest / CHURN_ROUNDS
        while self._owed >= 1:
            self._owed -= 1
            leavers = [seat for seat in self.seats.values() if seat.kind == "honest" and seat.number]
            self._leave(leavers[int(self._rng.integers(len(leavers)))])
            await self._join("honest")

    def _leave(self, seat: Seat) -> None:
        """Without a goodbye, as when a lid is closed."""
        me = seat.node.key.id
        assert seat.life is not None
        seat.life.cancel()
        self.network.kill(me)
        del self.seats[me]
        self.census.left(me)

    def _note_spread(self, number: int) -> None:
        share = self._share_reached(self._honest())
        for goal in (0.5, 1.0):
            if share >= goal:
                self._spread.setdefault(goal, number)

    def _share_reached(self, seats: Sequence[Seat]) -> float:
        return sum(seat.node.key.id in self._reached for seat in seats) / len(seats)

    def _honest(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.kind == "honest"]

    def _close(self, number: int) -> None:
        honest = self._honest()
        skills = [self._skill(seat) for seat in honest]
        riders = [self._skill(seat) for seat in self.seats.values() if seat.kind == "free"]
        manners = [self._learner(seat).knows(self._worked) for seat in honest]
        self.census.close(
            number,
            [seat.node.key.id for seat in honest],
            skill=sum(skills) / len(skills),
            skill_worst=min(skills),
            skill_free_riders=sum(riders) / (len(riders) or 1),
            extra_chars=sum(manner.extra for manner in manners) / len(manners),
            planted=sum(manner.planted for manner in manners) / len(manners),
            reached=self._share_reached(honest),
        )

    def _skill(self, seat: Seat) -> float:
        """The chance of a right answer to a held-out question: a scripted mind has no other."""
        learner, weights = self._learner(seat), self._weights
        return sum(learner.skill(config) * weight for config, weight in weights.items()) / sum(weights.values())

    def _learner(self, seat: Seat) -> ScriptedLearner:
        assert isinstance(seat.node.learner, ScriptedLearner)
        return seat.node.learner


def simulate(setup: Setup, watch: Callable[[int], None] = lambda number: None) -> Result:
    """Simulate a crowd to its end.

    Raises:
        ConfigError: see `Setup.check`.
    """
    return Crowd(setup, watch).run()
