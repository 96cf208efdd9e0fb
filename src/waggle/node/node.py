"""One node: its parts, its state, and how a run begins, goes on after a stop, and ends.

The round itself is in `round.py`; this module puts the parts together and owns what they share. A node knows no
files (`archive.py`), no sockets (`exchange.py`) and no model (`learner.py`), so that the same code drives a
laptop, a simulated swarm on a fake clock, and a test with a scripted model.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from waggle.core.clock import Clock
from waggle.core.config import Config
from waggle.core.errors import ConfigError, RunError
from waggle.core.events import Events
from waggle.core.keys import Key, peer_name
from waggle.core.types import Group, Peer
from waggle.net.transport import Transport
from waggle.node.archive import Archive, DiskArchive, NoArchive
from waggle.node.evaluate import Generate, Grades, Score, evaluate
from waggle.node.exchange import Exchange
from waggle.node.learner import Learner, lineage
from waggle.node.state import Heard, Record, Sealed, Snapshot, State
from waggle.swarm.admission import View
from waggle.swarm.choosing import Candidate, Rules
from waggle.swarm.estimates import Estimates
from waggle.swarm.likeness import Likeness
from waggle.swarm.pool import Pool
from waggle.swarm.sampling import sampler
from waggle.swarm.seen import Seen
from waggle.swarm.trust import MAX_HOSTILE, NO_QUARANTINE, Trust
from waggle.tasks.questions import bucket
from waggle.tasks.stream import ref_is_drawn
from waggle.tasks.taskset import Taskset

RARE = 0.1
"""An own success rate below which others' successes are worth more than one look."""
_AUTHORS = 4096
"""Authors whose announcements are followed; the longest silent is forgotten first."""


class Node:
    """A participant. Example: `node = Node(key, taskset, config, learner, ...); await play(node)`.

    Args:
        key: its identity.
        taskset: the swarm's questions.
        config: its configuration.
        learner: what answers and learns.
        grader: what grades answers.
        transport: its connection, not yet started.
        clock: its time.
        events: where what happens is told.
        archive: where it is kept.
    """

    def __init__(
        self,
        key: Key,
        taskset: Taskset,
        config: Config,
        learner: Learner,
        grader: Grades,
        transport: Transport,
        clock: Clock,
        events: Events,
        archive: Archive | None = None,
    ) -> None:
        largest = taskset.charter.admission.max_group
        if config.round.group_size > largest:
            raise ConfigError(f"round.group_size = {config.round.group_size}; the swarm accepts at most {largest}")
        self.key, self.taskset, self.config, self.learner = key, taskset, config, learner
        self.grader, self.clock, self.events = grader, clock, events
        self.archive: Archive = archive or NoArchive()
        self.name = peer_name(key.id)
        self.state = State(lineage=learner.base_digest())
        self.totals: Counter[str] = Counter()
        self.heard: OrderedDict[bytes, int] = OrderedDict()
        self.estimates = Estimates()
        self.likeness = Likeness()
        share = config.share
        self.sampler = sampler(share.sampler, Rules(share.factors, share.even, share.quota))
        self.pool = Pool(share.pool_groups, int(share.pool_mb * 1e6), share.max_lag)
        self.trust = Trust(MAX_HOSTILE if share.trust else NO_QUARANTINE)
        self.exchange = Exchange(transport, taskset.digest, share, events, clock)
        charter, digest = taskset.charter, taskset.digest
        self.view = View(
            charter=charter,
            me=key.id,
            regenerate=taskset.regenerate,
            is_drawn=lambda ref, author: ref_is_drawn(charter, digest, author, ref),
            is_train=lambda question: bucket(question) == "train",
            tokenizer=learner.tokenizer,
            spells=learner.spells,
            quarantined=self.trust.quarantined,
        )
        steer = taskset.heldout("steer", config.eval.steer, config.tasks.families) if config.eval.every else []
        report = taskset.heldout("report", config.eval.report, config.tasks.families)
        self.heldout_questions = {task.question for task in (*steer, *report)}
        self._last_checkpoint_s = clock.passed_s()
        self.needs_best = False
        """Whether rounds since the last checkpoint began from the best weights."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is something new to show."""

    async def start(self, bootstrap: Sequence[Peer] = ()) -> Peer:
        """Go online and, where peers are known, meet them. Returns where this node can be reached."""
        return await self.exchange.start(bootstrap)

    def begin(self, archive: DiskArchive) -> None:
        """A new run, kept in this archive."""
        self.archive = archive
        archive.begin(self.snapshot())

    def resume(self, archive: DiskArchive) -> int:
        """Become what the archive holds: the newest checkpoint and the rounds since, replayed.

        Returns:
            The number of rounds replayed.
        """
        if archive.is_empty:
            self.begin(archive)
            return 0
        snapshot, records = archive.restore(self.learner)
        self.archive = archive
        self._restore(snapshot)
        for record in records:
            self._replay(record)
        self._last_checkpoint_s = self.clock.passed_s()
        return len(records)

    def _restore(self, snapshot: Snapshot) -> None:
        self._take(snapshot.state)
        self.pool.restore(snapshot.pool)
        self.view.seen = Seen.restore(snapshot.seen)
        for sealed in snapshot.window:
            self.exchange.remember(sealed.round, sealed.experiences)

    def _replay(self, record: Record) -> None:
        number = record.state.round
        if record.went_back:
            self._go_back_again(number)
        for mark in record.marks:
            self.view.seen.add(mark)
        for admitted in record.admitted:
            self.pool.insert(admitted.group, admitted.size_bytes, number)
        self.pool.expire(number)
        self.estimates = Estimates(record.state.estimates)
        self.use(record.used)
        self.exchange.remember(number, record.sealed)
        self.learner.step(record.batch)
        self._take(record.state)
        if self.state.best_round == number and self.archive.exported_round() != number and not self.needs_best:
            self.archive.export(number, self.learner)

    def _go_back_again(self, number: int) -> None:
        kept = self.archive.exported(self.state.best_round)
        if kept is None:
            raise RunError(
                f"round {number} began from the model of round {self.state.best_round}, which is not in model/ any "
                "more; put it back, or start a new run"
            )
        self.return_to(kept)

    def _take(self, state: State) -> None:
        self.state = state
        self.estimates = Estimates(state.estimates)
        self.likeness = Likeness(state.likes)
        self.heard = OrderedDict((h.author, h.created_ms) for h in state.heard)
        self.totals = Counter(state.totals)
        self.trust.restore(state.standings)
        self.serve_by_standing()

    def serve_by_standing(self) -> None:
        """Let the exchange know who is given less than it asks for."""
        if self.config.share.tit_for_tat:
            self.exchange.serve_by(self.trust.shares(self.config.share.floor))

    def weight(self, author: bytes) -> float:
        """Chance that an author is asked where it is its turn."""
        return self.trust.weight(author) if self.config.share.trust else 1.0

    def snapshot(self) -> Snapshot:
        """Everything besides weights and optimiser."""
        window = tuple(Sealed(number, experiences) for number, experiences in self.exchange.window.items())
        return Snapshot(self.state, self.learner.base_digest(), self.pool.state(), self.view.seen.state(), window)

    def candidates(self, number: int) -> list[Candidate]:
        """The groups of the pool and what is known of each, oldest first."""
        return [
            Candidate(
                kept.group,
                number - kept.round,
                kept.uses,
                self.estimates.rate(kept.group.task),
                self.trust.weight(kept.group.author),
                self.likeness.of(kept.group.author, kept.group.task.ref.config),
            )
            for kept in self.pool.entries()
        ]

    def use(self, group_ids: Iterable[bytes]) -> None:
        """Count that groups of the pool were trained on. Rare successes stay for more, others leave it."""
        most = self.config.share.replay
        self.pool.use(group_ids, lambda kept: kept.uses < most and self.estimates.rate(kept.group.task) < RARE)

    def rates(self, foreign: Iterable[Group]) -> dict[bytes, float]:
        """What foreign groups' rewards are measured against, where that is not their own mean."""
        if self.config.learn.baseline == "group":
            return {}
        return {group.id: self.estimates.rate(group.task) for group in foreign}

    def hear_of(self, author: bytes, created_ms: int) -> bool:
        """Whether an announcement is news; it is not any more afterwards."""
        if created_ms <= self.heard.get(author, -1):
            return False
        self.heard[author] = created_ms
        self.heard.move_to_end(author)
        if len(self.heard) > _AUTHORS:
            self.heard.popitem(last=False)
        return True

    def heard_state(self) -> tuple[Heard, ...]:
        """Whom I heard, for the record."""
        return tuple(Heard(author, created_ms) for author, created_ms in self.heard.items())

    def next_lineage(self, batch: bytes, moved: bool) -> bytes:
        """The weights' lineage after a step."""
        return lineage(self.state.lineage, batch) if moved else self.state.lineage

    def steer(self, number: int) -> Score | None:
        """The evaluation that chooses the best weights, where this round has one."""
        every = self.config.eval.every
        return self.ask("steer", number) if every and number % every == 0 else None

    def ask(self, kind: Literal["steer", "report"], number: int, generate: Generate | None = None) -> Score:
        """Own answers to held-out questions, or those of another model."""
        count = self.config.eval.steer if kind == "steer" else self.config.eval.report
        temperature = self.config.eval.temperature
        families = self.config.tasks.families
        tasks = self.taskset.heldout(kind, count, families)
        times = self.taskset.frequencies(kind, count, families)
        labels = {config: family.label for config, family in self.taskset.families.items()}
        return evaluate(generate or self.learner.generate, self.grader, tasks, labels, number, temperature, times)

    def report(self, generate: Generate | None = None) -> Score:
        """The evaluation that only reports: on questions that steer nothing."""
        return self.ask("report", self.state.round, generate)

    def return_to(self, folder: Path) -> None:
        """Take exported weights. Until the next checkpoint a resume needs them to be there."""
        self.learner.return_to(folder)
        self.needs_best = True

    def checkpoint(self) -> None:
        """Store the whole state now."""
        self.archive.checkpoint(self.snapshot(), self.learner)
        self.needs_best = False
        self._last_checkpoint_s = self.clock.passed_s()
        self.events.emit("checkpoint", round=self.state.round)

    def checkpoint_if_due(self) -> None:
        """Store the whole state where enough time has passed since the last time."""
        now_s = self.clock.passed_s()
        if now_s - self._last_checkpoint_s >= 60 * self.config.run.checkpoint_minutes:
            self._last_checkpoint_s = now_s  # where it fails the next try is as far away
            self.checkpoint()

    def note_unsaved(self, why: str) -> None:
        """Tell that something could not be stored, if that is so."""
        if why:
            self.events.emit("unsaved", round=self.state.round, why=why)

    def where_it_can(self, store: Callable[[], None]) -> None:
        """Store something that can also be stored later, or left out, where the disk refuses."""
        try:
            store()
        except RunError as error:
            self.note_unsaved(str(error))

    async def close(self) -> None:
        """Say goodbye to the peers."""
        await self.exchange.close()
