"""The whole method in one file: a few nodes that sample, grade, share, mix and step. Read it top to bottom.

Run: python examples/loop.py                      two nodes with the bundled model, some minutes
     python examples/loop.py --model tiny --file letters.jsonl --grader regex    seconds, questions of your own

Each node has a model of its own. A round: draw questions, answer each several times, grade the answers, give the
groups to the others, take groups of theirs, take one optimiser step on both. Two rules make it work among strangers:
a group travels as a reference to its question, never with a truth or a reward, since whoever takes it in makes the
question again and grades for himself; and only own answers to questions that nobody trains on count as progress.

Left out, and found in src/waggle: signatures, admission and the pool (swarm), the network (net), rounds at unequal
speeds, checkpoints, limits on memory and disk, what to do when something fails (node).
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from waggle.core.codec import digest
from waggle.core.config import LearnConfig
from waggle.core.keys import Key, peer_name
from waggle.core.rng import rng_for, seed_for
from waggle.core.types import Admission, Body, Charter, Family, Group, PolicyRef, Rollout, Sampling, Task
from waggle.policy.load import load
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.rl.batch import Batch, build
from waggle.rl.trainer import StepReport, Trainer
from waggle.tasks.families import named_set
from waggle.tasks.files import family_from_file
from waggle.tasks.grade import Graders
from waggle.tasks.stream import Cursor
from waggle.tasks.taskset import Taskset


@dataclass
class Node:
    """One member of the swarm: a key, a model with its optimiser, its place among the questions, what peers gave."""

    key: Key
    policy: Policy
    trainer: Trainer
    cursor: Cursor = field(default_factory=Cursor)
    pool: list[Group] = field(default_factory=list)


# ---- What the swarm is: families of questions, and who founded it. Its digest decides every question.


def found(families: Sequence[Family], key: Key) -> Charter:
    return Charter("loop", tuple(families), 1, Admission(), 0.25, "CC-BY-4.0", (), key.id, 0)


def families_of(options: argparse.Namespace, folder: Path) -> Sequence[Family]:
    if options.file:
        return [family_from_file(options.file, options.grader, folder=folder, shots=0, max_tokens=options.tokens)]
    return named_set(options.set)


# ---- Sample and grade: my own answers to my next questions.


def answer(node: Node, tasks: Sequence[Task], num: int, number: int) -> list[Body]:
    """`num` answers to each question, as they would be sent: by reference, with ids and log-probabilities."""
    longest = max(task.max_tokens for task in tasks)
    sampling = Sampling(max_tokens=longest, seed=seed_for("answer", node.key.id, number))
    policy = PolicyRef(node.policy.name, bytes(32), number)
    answers = generate(node.policy, tasks, num, sampling)
    return [
        Body(task.ref, policy, sampling, tuple(row), node.key.id, number)
        for task, row in zip(tasks, answers, strict=True)
    ]


def grade(bodies: Sequence[Body], taskset: Taskset, graders: Graders) -> list[Group]:
    """Make each question and its truth again and grade every answer; the same for my own bodies and a peer's."""
    tasks = [taskset.regenerate(body.task) for body in bodies]
    verdicts = iter(
        graders.grade([(t, c.text) for t, body in zip(tasks, bodies, strict=True) for c in body.completions])
    )
    groups = []
    for task, body in zip(tasks, bodies, strict=True):
        rollouts = tuple(Rollout(completion, next(verdicts)) for completion in body.completions)
        groups.append(Group(task, body.policy, body.sampling, rollouts, body.author, body.round, digest(body)))
    return groups


# ---- Share and mix: groups with a learning signal go to the others; I train on mine and a few of theirs.


def share(bodies: Sequence[Body], mine: Sequence[Group]) -> list[Body]:
    """What is worth sending: groups whose answers differ in reward."""
    return [body for body, group in zip(bodies, mine, strict=True) if group.has_signal]


def mix(node: Node, mine: Sequence[Group], num_foreign: int, number: int) -> list[Group]:
    """All my groups, and J of the pool; what was drawn leaves the pool. An empty pool is normal."""
    rng = rng_for("mix", node.key.id, number)
    drawn = set(rng.permutation(len(node.pool))[:num_foreign].tolist())
    foreign = [group for i, group in enumerate(node.pool) if i in drawn]
    node.pool = [group for i, group in enumerate(node.pool) if i not in drawn][-64:]
    return [*mine, *foreign]


# ---- Step: advantages are rewards minus the group's mean; one packed batch, one step of AdamW.


def learn(node: Node, groups: Sequence[Group]) -> tuple[Batch, StepReport]:
    batch = build(groups, node.policy, node.key.id)
    return batch, node.trainer.step(batch)


# ---- The only figure that counts: own answers to held-out questions, one each.


def held_out(node: Node, tasks: Sequence[Task], taskset: Taskset, graders: Graders) -> float:
    return mean(grade(answer(node, tasks, 1, 0), taskset, graders))


def mean(groups: Sequence[Group]) -> float:
    rewards = [reward for group in groups for reward in group.rewards]
    return sum(rewards) / max(1, len(rewards))


def play(nodes: Sequence[Node], taskset: Taskset, graders: Graders, options: argparse.Namespace) -> None:
    """The rounds. Here the nodes take turns; in a swarm each goes at its own speed and waits for nobody."""
    for number in range(1, options.rounds + 1):
        for node in nodes:
            tasks, node.cursor = taskset.draw(node.key.id, node.cursor, options.local)
            bodies = answer(node, tasks, options.group, number)
            mine = grade(bodies, taskset, graders)
            offered = share(bodies, mine)
            for peer in nodes:
                if peer is not node:
                    peer.pool += grade(offered, taskset, graders)  # a receiver believes nothing: he grades it again
            batch, report = learn(node, mix(node, mine, options.foreign, number))
            print(
                f"round {number:3d}  {peer_name(node.key.id):14s}  own reward {mean(mine):.2f}  "
                f"offered {len(offered)}/{len(mine)}  tokens {batch.num_tokens} ({batch.num_foreign_tokens} foreign)  "
                f"gradient {report.grad_norm:.2f}  largest ratio {report.ratio_max:.2f}",
                flush=True,
            )


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as in waggle: bundled, tiny, a folder, a hub id")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", default="short", help="a named set of families")
    parser.add_argument("--file", type=Path, help="questions of your own: JSONL with question and answer")
    parser.add_argument("--grader", default="exact", help="of --file: exact, number, choice or regex")
    parser.add_argument("--tokens", type=int, default=8, help="longest answer to questions of --file")
    parser.add_argument("--local", type=int, default=6, help="I: own groups a round")
    parser.add_argument("--foreign", type=int, default=4, help="J: peers' groups a round; 0 is training alone")
    parser.add_argument("--group", type=int, default=8, help="answers to a question")
    parser.add_argument("--held-out", type=int, default=60, help="questions asked before and after")
    parser.add_argument("--rate", type=float, default=0.0, help="step size; 0 takes the vetted default")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves it to torch")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    keys = [Key.from_seed(rng_for("key", i).bytes(32)) for i in range(options.nodes)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taskset = Taskset(found(families_of(options, folder), keys[0]), folder)
        nodes = []
        for key in keys:
            policy = load(options.model)
            nodes.append(Node(key, policy, Trainer(policy, LearnConfig(learning_rate=options.rate))))
        with Graders(taskset.charter.families) as graders:
            questions = taskset.heldout("report", options.held_out)
            before = [held_out(node, questions, taskset, graders) for node in nodes]
            play(nodes, taskset, graders, options)
            after = [held_out(node, questions, taskset, graders) for node in nodes]
    for node, was, now in zip(nodes, before, after, strict=True):
        print(f"{peer_name(node.key.id):14s}  held-out questions answered right: {was:.2f} before, {now:.2f} after")


if __name__ == "__main__":
    main()
