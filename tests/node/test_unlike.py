"""Unlike peers in one swarm: other tokenizers, group sizes, LoRA and all weights, text alone, no model at all.

Two random tiny models with different tokenizers and a scripted peer without one share both ways, real steps and all.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config, easy_family, keys
from waggle.core.clock import FakeClock
from waggle.core.config import Config
from waggle.core.events import NoEvents
from waggle.core.types import Completion, Family, Group, Sampling, Task
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.learner import NO_RATES, Learner, ModelLearner
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.scripted import ScriptedLearner
from waggle.node.swarm import connect
from waggle.rl.batch import Batch
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

SETTINGS = (
    *("eval.every=0", "round.local=2", "round.foreign=3", "share.publish=all", "learn.warmup=0"),
    *("tasks.file=x", "tasks.share_file=true", "learn.learning_rate=0.01"),
)


@dataclass
class Peer:
    """A node, its reports and what it trained on."""

    node: Node
    reports: list[Report]
    batches: list[Batch]

    @property
    def foreign(self) -> list[Group]:
        return [group for report in self.reports for group in report.mixed.foreign]


class Remembering(ModelLearner):
    """A learner that keeps its batches."""

    batches: list[Batch]

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        data = super().pack(groups, me, rates)
        self.batches = [*getattr(self, "batches", []), Batch.from_bytes(data)]
        return data


class Saying(ScriptedLearner):
    """A peer without a model whose answers fit, some right and some wrong."""

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return [[self.completion("za 9"[: 2 + (g % 2)] if g % 3 else "zz") for g in range(num)] for _ in tasks]


def model(settings: Config) -> Remembering:
    return Remembering(build.load_policy(settings), settings)


def swarm(family: Family, folder: Path, made: Sequence[tuple[Learner, Config]]) -> list[Peer]:
    """One node a learner, on one network."""
    clock = FakeClock()
    network = MemoryNetwork(0, clock)
    taskset = Taskset(charter_of([family]), folder / build.FILES)
    grader = Graders([family], workers=0)
    return [
        Peer(Node(key, taskset, settings, learner, grader, network.attach(key.id), clock, NoEvents()), [], [])
        for key, (learner, settings) in zip(keys(len(made)), made, strict=True)
    ]


def played(peers: Sequence[Peer], rounds: int) -> None:
    async def story() -> None:
        await connect([peer.node for peer in peers])
        for _ in range(rounds):
            for peer in peers:
                peer.reports.append(await play(peer.node))
        for peer in peers:
            peer.batches = getattr(peer.node.learner, "batches", [])

    asyncio.run(story())


def weights(peer: Peer) -> dict[str, bytes]:
    learner = peer.node.learner
    assert isinstance(learner, ModelLearner)
    return {name: tensor.detach().numpy().tobytes() for name, tensor in learner.policy.parameters()}


def ids_exist(peer: Peer) -> bool:
    """Whether everything trained on is of the learner's own vocabulary."""
    learner = peer.node.learner
    assert isinstance(learner, ModelLearner)
    top = max(max(ids) for batch in peer.batches for e in batch.examples for ids in e.prompted.completions)
    return top < learner.policy.vocabulary


@pytest.mark.slow
def test_two_tokenizers_two_sizes_lora_and_full_share_both_ways(tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    family = easy_family(tmp_path)
    full = config(*SETTINGS, "model.name=tiny", "round.group_size=4")
    lora = config(*SETTINGS, "model.name=tiny-b", "model.lora_rank=4", "round.group_size=6")
    peers = swarm(family, tmp_path, [(model(full), full), (model(lora), lora)])
    one, two = peers
    assert one.node.learner.tokenizer != two.node.learner.tokenizer
    before = [weights(peer) for peer in peers]
    played(peers, 6)
    for peer, other, start, size in zip(peers, reversed(peers), before, (6, 4), strict=True):
        used = peer.foreign
        assert len(used) >= 5
        assert {group.author for group in used} == {other.node.key.id}
        assert {len(group.rollouts) for group in used} == {size}
        assert all(rollout.completion.tokens is None for group in used for rollout in group.rollouts)
        examples = [example for batch in peer.batches for example in batch.examples]
        assert all(not any(e.known) for e in examples if e.foreign)  # no log-probabilities of another tokenizer
        assert all(all(e.known) for e in examples if not e.foreign)
        assert sum(e.foreign for e in examples) >= 5
        assert ids_exist(peer)
        assert weights(peer).keys() == start.keys()
        assert all(weights(peer)[name] != data for name, data in start.items())
        assert peer.node.state.step >= 5
        assert not any(report.arrived.refused for report in peer.reports)
        moved = [r.step.numbers for r in peer.reports if r.step.moved and r.mixed.foreign]
        assert all(numbers["num_nonfinite"] == 0 and abs(numbers["ratio_mean"] - 1) < 0.01 for numbers in moved)
    assert all("lora_" in name for name in before[1])


@pytest.mark.slow
@pytest.mark.parametrize("logprobs", [True, False])
def test_a_peer_that_sends_text_alone_is_used(tmp_path: Path, logprobs: bool) -> None:
    import torch

    torch.set_num_threads(1)
    family = easy_family(tmp_path)
    talking = config(*SETTINGS, "model.name=tiny", f"share.logprobs={str(logprobs).lower()}")
    plain = config(*SETTINGS, "model.name=tiny:5")
    peers = swarm(family, tmp_path, [(model(talking), talking), (model(plain), plain)])
    assert peers[0].node.learner.tokenizer == peers[1].node.learner.tokenizer
    played(peers, 4)
    listener = peers[1]
    used = listener.foreign
    assert len(used) >= 4
    assert all((r.completion.tokens is not None) is logprobs for group in used for r in group.rollouts)
    known = [all(e.known) for batch in listener.batches for e in batch.examples if e.foreign]
    assert len(known) >= 4
    assert set(known) == {logprobs}
    assert not any(report.arrived.refused for peer in peers for report in peer.reports)


@pytest.mark.slow
def test_a_peer_without_a_model_shares_both_ways(tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    family = easy_family(tmp_path)
    settings = config(*SETTINGS, "model.name=tiny")
    scripted = config(*SETTINGS, "model.name=scripted", "round.group_size=5")
    saying = Saying(0.2, 0.1)
    assert saying.tokenizer == b""
    peers = swarm(family, tmp_path, [(model(settings), settings), (saying, scripted)])
    before = weights(peers[0])
    played(peers, 4)
    assert {group.author for group in peers[0].foreign} == {peers[1].node.key.id}
    assert {group.author for group in peers[1].foreign} == {peers[0].node.key.id}
    assert any(e.foreign and len(e.lengths) == 5 for batch in peers[0].batches for e in batch.examples)
    assert all(weights(peers[0])[name] != data for name, data in before.items())
    assert peers[1].node.state.step == 4
    assert not any(report.arrived.refused for peer in peers for report in peer.reports)
