"""Swarms whose rounds are looked into, and a peer, Eve, who offers whatever a test crafts for her."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.node.parts import config, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.core.config import Config
from waggle.core.events import NoEvents
from waggle.core.keys import Key
from waggle.core.sealing import seal
from waggle.core.types import (
    Body,
    Completion,
    Experience,
    Family,
    Group,
    Peer,
    PolicyRef,
    Sampling,
    Task,
    Text,
    Verdict,
)
from waggle.net.memory import MemoryNetwork
from waggle.node.archive import NoArchive
from waggle.node.evaluate import Grades
from waggle.node.exchange import Exchange
from waggle.node.learner import NO_RATES
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.scripted import ScriptedLearner
from waggle.node.state import Record
from waggle.node.swarm import connect
from waggle.tasks.families import family
from waggle.tasks.stream import Cursor, ref_at

EVE = Key.from_seed(b"e" * 32)
BASE = ("model.name=scripted", "eval.every=0", "round.local=3", "round.foreign=3")
SUMS = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)


class Kept(NoArchive):
    """The records of a node, in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def commit(self, record: Record) -> None:
        self.records.append(record)

    @property
    def last_line(self) -> dict[str, Any]:
        return dict(json.loads(self.records[-1].metrics))


class Recording(ScriptedLearner):
    """A scripted learner that remembers what it was trained on."""

    def __init__(self, skill: float = 0.4, seed: int = 0, tokenizer: bytes = b"t" * 32) -> None:
        super().__init__(skill, 0.0, seed, tokenizer)
        self.packed: list[Group] = []

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        self.packed += groups
        return super().pack(groups, me)


class Wordy(Recording):
    """Its answers are long and differ, so that a copy of them can be told."""

    def completion(self, text: str, max_tokens: int = 0) -> Completion:
        return Completion((Text(f"the number that was asked for is {text}"),), "stop")


class Grading:
    """A grader that says what a function makes of the real verdict."""

    def __init__(self, real: Grades, change: Callable[[int, Verdict], Verdict]) -> None:
        self._real, self._change, self._count = real, change, 0

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        verdicts = []
        for verdict in self._real.grade(items):
            verdicts.append(self._change(self._count, verdict))
            self._count += 1
        return verdicts


class Swarm:
    """Nodes that have met, and a way to play them."""

    def __init__(
        self,
        num: int,
        *sets: str,
        families: tuple[Family, ...] = (SUMS,),
        learners: Sequence[ScriptedLearner] = (),
        files: Path | None = None,
    ) -> None:
        self.clock = clock = FakeClock()
        self.network = network = MemoryNetwork(0, clock)
        settings: Config = config(*BASE, *sets)
        made = list(learners) or [Recording(seed=number) for number in range(num)]
        self.nodes = scripted_swarm(families, num, settings, clock=clock, network=network, learners=made, files=files)
        self.archives = [Kept() for _ in self.nodes]
        for node, archive in zip(self.nodes, self.archives, strict=True):
            node.archive = archive

    async def rounds(self, count: int) -> list[list[Report]]:
        """Reports by node."""
        reports: list[list[Report]] = [[] for _ in self.nodes]
        for _ in range(count):
            for node, told in zip(self.nodes, reports, strict=True):
                told.append(await play(node))
                self.clock.advance(1.0)
        return reports

    async def eve(self) -> Exchange:
        """A peer who says what she likes, met by all."""
        eve = Exchange(
            self.network.attach(EVE.id),
            self.nodes[0].taskset.digest,
            self.nodes[0].config.share,
            NoEvents(),
            self.clock,
        )
        await eve.start([Peer(other.key.id, "memory") for other in self.nodes])
        return eve


def met(swarm: Swarm, count: int) -> list[list[Report]]:
    """Meet and play."""

    async def story() -> list[list[Report]]:
        await connect(swarm.nodes)
        return await swarm.rounds(count)

    return asyncio.run(story())


def drawn(node: Node, key: Key, wanted: Callable[[Task], bool], skip: int = 0) -> Task:
    """One of the questions that a key is dealt."""
    for index in range(4096):
        task = node.taskset.regenerate(ref_at(node.taskset.charter, node.taskset.digest, key.id, Cursor(0, index)))
        if wanted(task):
            if not skip:
                return task
            skip -= 1
    raise AssertionError("no such question")


def body(asked: Task, texts: Sequence[str], **changes: Any) -> Body:
    completions = tuple(Completion((Text(text),), "stop") for text in texts)
    made = Body(asked.ref, PolicyRef("evil", b"w" * 32, 0), Sampling(max_tokens=6), completions, EVE.id, 1)
    return replace(made, **changes)


def sealed(node: Node, bodies: Sequence[Body], number: int = 1, by: Key = EVE) -> list[Experience]:
    return seal(by, node.taskset.digest, number, int(node.clock.now_s() * 1000), bodies)


def hears(node: Node, swarm: Swarm, experiences: Sequence[Experience]) -> tuple[Report, dict[str, Any]]:
    """A round of a node that Eve offers these to, and its metrics line."""

    async def story() -> Report:
        await node.start()
        eve = await swarm.eve()
        await eve.offer(experiences[0].body.round, experiences)
        return await play(node)

    return asyncio.run(story()), swarm.archives[0].last_line


def is_train(node: Node) -> Callable[[Task], bool]:
    return lambda task: node.taskset.bucket(task) == "train"
