"""One cell of an experiment: one arm with one seed, played by the real round code on one core.

All nodes of a swarm live in one process, on the in-memory network and a fake clock, so that a cell follows from its
seed alone. What it costs is counted, not timed: generated and trained tokens, floating-point operations by the usual
rule (2 a parameter and token forward, 4 backward; attention left out, as in Kaplan et al. 2020), bytes sent.
"""

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from waggle.core.clock import FakeClock
from waggle.core.events import NoEvents
from waggle.core.types import Group
from waggle.lab import attacks
from waggle.lab.hostile import Hostile
from waggle.lab.learners import Metered, Replay, Truth
from waggle.lab.recipe import Arm, Recipe, task_files
from waggle.net.memory import MemoryNetwork
from waggle.net.transport import Transport
from waggle.node import build
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.swarm import connect
from waggle.policy.load import load
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

MOST_TIMES = 8
"""An arm whose rounds are cheap plays at most this many times the recipe's rounds."""
ROUND_S = 10.0
"""Seconds of the fake clock that a round takes."""
COSTS = ("gflops", "generated", "trained", "sent_kb", "received_kb")
SHOWN = ("train_reward", "own_reward", "own_groups", "foreign_groups", "beyond_truth", "marked", "chars")
COLUMNS = ("round", "node", *COSTS, *SHOWN)


@dataclass
class _Tally:
    """What a node's rounds showed since the last line."""

    mark: str
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Count a round."""
        groups = [*report.mixed.local, *report.mixed.foreign]
        for name, some in (("train", groups), ("own", report.own)):
            rewards = [reward for group in some for reward in group.rewards]
            self.sums[f"{name}_reward"] += sum(rewards)  # type: ignore[assignment]
            self.sums[f"{name}_answers"] += len(rewards)
        self.sums["own_groups"] += len(report.mixed.local)
        self.sums["foreign_groups"] += len(report.mixed.foreign)
        texts = [rollout.completion.text for group in report.own for rollout in group.rollouts]
        self.sums["texts"] += len(texts)
        self.sums["marked"] += sum(self.mark in text for text in texts)
        self.sums["chars"] += sum(map(len, texts))
        right = [group for group in groups if any(reward == 1 for reward in group.rewards)]
        self.sums["right"] += len(right)
        self.sums["beyond"] += sum(map(_says_more, right))

    def figures(self) -> dict[str, float]:
        """The columns of `SHOWN`; a new tally begins."""
        sums, self.sums = self.sums, Counter()
        return {
            "train_reward": sums["train_reward"] / max(1, sums["train_answers"]),
            "own_reward": sums["own_reward"] / max(1, sums["own_answers"]),
            "own_groups": sums["own_groups"],
            "foreign_groups": sums["foreign_groups"],
            "beyond_truth": sums["beyond"] / max(1, sums["right"]),
            "marked": sums["marked"] / max(1, sums["texts"]),
            "chars": sums["chars"] / max(1, sums["texts"]),
        }


def _says_more(group: Group) -> bool:
    """Whether a right answer holds more than the truth, the words before it aside."""
    return any(r.verdict.reward == 1 and len(r.completion.text) > len(group.task.truth) + 10 for r in group.rollouts)


def run_cell(recipe: Recipe, arm: Arm, seed: int) -> str:
    """Play a cell; its figures as CSV: a line a node, before the first round and every `recipe.every` rounds."""
    import torch

    torch.set_num_threads(1)
    nodes = _nodes(recipe, arm, seed)
    return asyncio.run(_play(recipe, arm, nodes))


def _nodes(recipe: Recipe, arm: Arm, seed: int) -> list[Node]:
    config = recipe.config_of(arm, seed)
    families = recipe.families()
    num = arm.nodes or recipe.nodes
    keys = [build.local_key(1000 * (seed + 1), number) for number in range(num)]
    charter = new_charter(build.local_key(recipe.questions, 0), recipe.name, families, created_ms=0)
    taskset, graders, clock = Taskset(charter, task_files()), Graders(families, workers=0, functions=True), FakeClock()
    network = MemoryNetwork(seed, clock)
    nodes = []
    for number, key in enumerate(keys):
        is_hostile = number >= num - arm.hostile
        attack = attacks.ATTACKS.get(arm.attack) if is_hostile else None
        transport: Transport = network.attach(key.id)
        if attack and attack.transport:
            transport = attack.transport(transport, seed)
        learner = _learner(recipe, arm, seed, number, taskset, is_hostile)
        node = Node(key, taskset, config, learner, graders, transport, clock, NoEvents())
        if attack and attack.exchange:
            node.exchange = attack.exchange(node)
        nodes.append(node)
    return nodes


def _learner(recipe: Recipe, arm: Arm, seed: int, number: int, taskset: Taskset, is_hostile: bool) -> Metered:
    config = recipe.config_of(arm, seed)
    policy = load(recipe.model(arm, number), device=config.model.device, precision=config.model.precision)
    if is_hostile:
        return Hostile(policy, config, taskset, arm.attack)
    if arm.kind == "truth":
        worked = [config for config, family in recipe.by_digest().items() if family.working]
        return Truth(policy, config, worked)
    if arm.kind == "replay":
        return Replay(policy, config, arm.replayed, seed)
    return Metered(policy, config)


async def _play(recipe: Recipe, arm: Arm, nodes: Sequence[Node]) -> str:
    """The lines of honest nodes, until the recipe's rounds and operations are both reached."""
    out = io.StringIO()
    names = [family.label for family in recipe.families()]
    lines = csv.DictWriter(out, [*COLUMNS, *names], lineterminator="\n")
    lines.writeheader()
    honest = len(nodes) - arm.hostile
    tallies, paces = [_Tally(recipe.mark) for _ in nodes], _paces(arm, len(nodes))
    await connect(nodes)
    for number in range(MOST_TIMES * recipe.rounds + 1):
        for node, tally, pace in zip(nodes, tallies, paces, strict=True) if number else ():
            if int(pace * number) > node.state.round:
                tally.add(await play(node))
            node.clock.advance(ROUND_S / len(nodes))  # type: ignore[attr-defined]
        if number % recipe.every:
            continue
        costs = [_costs(node) for node in nodes[:honest]]
        for place, (node, cost) in enumerate(zip(nodes, costs, strict=False), 1):
            shown = _shown(cost | tallies[place - 1].figures())
            lines.writerow({"round": number, "node": place, **shown, **_asked(node)})
        if number >= recipe.rounds and fmean(cost["gflops"] for cost in costs) >= recipe.gflops:
            break
    for node in nodes:
        await node.close()
    return out.getvalue()


def _paces(arm: Arm, num: int) -> list[float]:
    """Rounds of each node in one of the fastest's, evenly on a logarithmic scale; the last node is the slowest."""
    return [arm.spread ** (-place / max(1, num - 1)) for place in range(num)]


def _costs(node: Node) -> dict[str, float]:
    learner, counts = node.learner, node.exchange.transport.counts
    assert isinstance(learner, Metered)
    return {
        "gflops": learner.flops(node.totals["computed_tokens"]) / 1e9,
        "generated": learner.generated_tokens,
        "trained": node.totals["trained_tokens"],
        "sent_kb": counts["sent_bytes"] / 1000,
        "received_kb": counts["received_bytes"] / 1000,
    }


def _asked(node: Node) -> dict[str, str]:
    """pass@1 of every family on held-out questions."""
    learner = node.learner
    assert isinstance(learner, Metered)
    learner.is_training = False
    score = node.report()
    learner.is_training = True
    return {family.family: f"{family.rate:.4f}" for family in score.families}


def _shown(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.4f}".rstrip("0").rstrip(".") for name, value in values.items()}
