"""The best weights: not those that forgot, and the way back to them when sharing did harm, over a crash too."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.node.parts import charter_of, config, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.core.config import Config, LearnConfig
from waggle.core.errors import ConfigError, RunError
from waggle.core.events import EventLog, read_lines
from waggle.core.types import Family
from waggle.node import best
from waggle.node.archive import DiskArchive
from waggle.node.evaluate import FamilyScore, Score
from waggle.node.learner import ModelLearner
from waggle.node.node import Node
from waggle.node.round import play
from waggle.node.runfolder import RunFolder
from waggle.node.scripted import ScriptedLearner
from waggle.policy.load import load
from waggle.tasks.families import family

SETS = ("model.name=scripted", "eval.every=1", "eval.steer=60", "round.local=3", "round.foreign=1", "share.publish=all")
FALLS = {1: 0.6, 2: 0.1, 3: 0.1}
"""Held-out rates by round; two falls in a row end the sharing."""


class Learner(ScriptedLearner):
    """Says what plain text costs it as it is told, by the number of its steps."""

    def __init__(self, costs: dict[int, float]) -> None:
        super().__init__(0.4, 0.05, 1)
        self.costs, self.steps, self.asked = costs, 0, 0

    def step(self, batch: bytes) -> Any:
        self.steps += 1
        return super().step(batch)

    def prose_bits(self) -> float:
        self.asked += 1
        return self.costs.get(self.steps, 1.0)


@pytest.fixture(scope="module")
def families() -> tuple[Family, ...]:
    return (family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),)


class One:
    """A node alone in a run folder, whose held-out rates are told beforehand."""

    def __init__(
        self, path: Path, families: tuple[Family, ...], rates: dict[int, float], costs: dict[int, float], *sets: str
    ) -> None:
        self.path, self.rates, self.settings = path, rates, config(*SETS, *sets)
        self.learner, self.clock = Learner(costs), FakeClock()
        self.folder = _folder(path, self.settings, families)
        (self.node,) = scripted_swarm(families, 1, self.settings, clock=self.clock, learners=[self.learner])
        self.node.events = EventLog(self.folder.events_file, self.clock)
        self.node.ask = self._ask  # type: ignore[method-assign]
        self.node.resume(DiskArchive(self.folder, 1, 1 << 20, 1 << 20))

    def _ask(self, kind: str, number: int, generate: Any = None) -> Score:
        return Score(number, (FamilyScore("chain_sum", 60, 60 * self.rates.get(number, 0.3), 0),), 0)

    def play(self, last: int) -> None:
        async def story() -> None:
            await self.node.start()
            while self.node.state.round < last:
                await play(self.node)
                self.clock.advance(1.0)
            await self.node.close()

        asyncio.run(story())

    def crash(self) -> None:
        """Gone, without a word."""
        self.node.archive.close()  # type: ignore[attr-defined]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.folder.events_file) if line["event"] == name]


def _folder(path: Path, settings: Config, families: tuple[Family, ...]) -> RunFolder:
    if (path / "run.json").exists():
        return RunFolder.open(path)
    return RunFolder.create(path, settings, charter_of(families))


def skills(node: Node) -> Any:
    assert isinstance(node.learner, ScriptedLearner)
    return node.learner.skills


def test_weights_that_forgot_are_not_kept_however_well_they_do(tmp_path: Path, families: tuple[Family, ...]) -> None:
    rates, costs = {1: 0.3, 2: 0.9, 3: 0.5}, {1: 1.0, 2: 1.11, 3: 1.09}
    one = One(tmp_path, families, rates, costs)
    one.play(3)
    assert (one.node.state.best_round, one.node.state.best_rate) == (3, 0.5)
    assert one.node.archive.exported_round() == 3
    (told,) = one.events("forgot")
    assert (told["round"], told["rate"], told["bits"], told["bits_before"]) == (2, 0.9, 1.11, 1.0)


def test_without_the_limit_nobody_reads_plain_text(tmp_path: Path, families: tuple[Family, ...]) -> None:
    one = One(tmp_path, families, {1: 0.3, 2: 0.9}, {2: 9.9}, "eval.forget=0")
    one.play(2)
    assert one.node.state.best_round == 2
    assert one.learner.asked == 0


def test_the_last_weights_compete_by_the_same_rule(tmp_path: Path, families: tuple[Family, ...]) -> None:
    for number, (cost, kept) in enumerate(((1.5, 2), (1.0, 3))):
        one = One(tmp_path / str(number), families, {2: 0.3, 3: 0.9}, {3: cost}, "eval.every=2")
        one.play(3)
        best.close_steering(one.node)
        assert (one.node.state.best_round, one.node.archive.exported_round()) == (kept, kept)


def test_when_sharing_did_harm_a_round_begins_from_the_best_weights(
    tmp_path: Path, families: tuple[Family, ...]
) -> None:
    one = One(tmp_path, families, FALLS, {}, "share.adaptive=true")
    one.play(1)
    at_best, lineage = dict(skills(one.node)), one.node.state.lineage
    one.play(3)
    assert one.node.state.dose.back
    assert skills(one.node) != at_best
    returned: list[Any] = []
    take = one.learner.return_to
    one.learner.return_to = lambda folder: (take(folder), returned.append(dict(skills(one.node))))  # type: ignore[assignment]
    one.play(4)
    assert returned == [at_best]
    assert not one.node.state.dose.back
    assert one.node.state.best_lineage == lineage
    (told,) = one.events("went-back")
    assert (told["round"], told["to_round"]) == (3, 1)


def test_a_crash_after_the_return_changes_nothing(tmp_path: Path, families: tuple[Family, ...]) -> None:
    whole = One(tmp_path / "whole", families, FALLS, {}, "share.adaptive=true")
    whole.play(9)
    for last in (3, 4, 6):
        first = One(tmp_path / str(last), families, FALLS, {}, "share.adaptive=true")
        first.play(last)
        first.crash()
        again = One(tmp_path / str(last), families, FALLS, {}, "share.adaptive=true")
        again.play(9)
        assert skills(again.node) == skills(whole.node)
        assert again.node.state.lineage == whole.node.state.lineage


def test_better_ones_wait_for_a_checkpoint_while_the_journal_needs_the_old(
    tmp_path: Path, families: tuple[Family, ...]
) -> None:
    one = One(tmp_path, families, {**FALLS, 6: 0.9}, {}, "share.adaptive=true")
    one.play(7)
    assert one.node.archive.exported_round() == 6
    assert [path.name for path in one.folder.checkpoints.iterdir()] == ["round_000006"]
    one.crash()
    again = One(tmp_path, families, {**FALLS, 6: 0.9}, {}, "share.adaptive=true")
    assert skills(again.node) == skills(one.node)


def test_a_model_that_is_gone_is_said(tmp_path: Path, families: tuple[Family, ...]) -> None:
    one = One(tmp_path, families, FALLS, {}, "share.adaptive=true")
    one.play(2)
    one.node.checkpoint()
    one.play(5)
    one.crash()
    (tmp_path / "model" / "waggle.json").write_text('{"round": 2}\n')
    with pytest.raises(RunError, match=r"round 4 began from the model of round 1, which is not in model/ any more"):
        One(tmp_path, families, FALLS, {}, "share.adaptive=true")


def test_without_a_folder_there_is_no_way_back_and_it_trains_on(families: tuple[Family, ...]) -> None:
    settings = config(*SETS, "share.adaptive=true")
    (node,) = scripted_swarm(families, 1, settings, clock=FakeClock())
    rates = iter([0.6, 0.1, 0.1, 0.1, 0.1])
    node.ask = lambda *_: Score(0, (FamilyScore("chain_sum", 60, 60 * next(rates), 0),), 0)  # type: ignore[method-assign]

    async def story() -> None:
        await node.start()
        for _ in range(5):
            await play(node)

    asyncio.run(story())
    assert (node.state.round, node.state.dose.back, node.state.dose.level) == (5, False, 0.0)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_language_model_takes_exported_weights_and_a_fresh_optimiser(tmp_path: Path, rank: int) -> None:
    learner = ModelLearner(load("tiny", lora_rank=rank), Config(learn=LearnConfig()))
    wanted = {name: tensor.detach().clone() for name, tensor in learner.policy.parameters()}
    tmp_path.joinpath("model").mkdir()
    learner.export(tmp_path / "model")
    bits = learner.prose_bits()
    assert 4 < bits < 12
    learner.trainer.optimiser.steps = 7
    with torch.no_grad():
        for _, tensor in learner.policy.parameters():
            tensor.add_(0.05)
    assert learner.prose_bits() != bits
    learner.return_to(tmp_path / "model")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in learner.policy.parameters())
    assert learner.trainer.optimiser.steps == 0
    assert learner.prose_bits() == bits


def test_a_limit_without_evaluations_has_no_effect() -> None:
    with pytest.raises(ConfigError, match=r"eval\.forget has no effect with eval\.every = 0"):
        config("eval.every=0", "eval.forget=0.2")
