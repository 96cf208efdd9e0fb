"""A person among nodes: what is typed is graded and, where right, used by others; who leaves, leaves in order."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config, keys
from waggle.core.clock import FakeClock
from waggle.core.config import load
from waggle.core.events import NoEvents
from waggle.core.types import Sampling
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.node import Node
from waggle.node.person import LEAVE, SETTINGS, Left, PersonLearner, Telling, told
from waggle.node.round import Report, play
from waggle.node.scripted import ScriptedLearner
from waggle.node.swarm import connect
from waggle.tasks.families import family
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

FAMILIES = (family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),)
CHARTER = charter_of(FAMILIES)


class Person:
    """Reads what is said and types what comes to mind."""

    def __init__(self, knows: bool = True) -> None:
        self.heard: list[str] = []
        self.knows = knows

    def say(self, line: str) -> None:
        self.heard.append(line)

    def type(self) -> str:
        terms = re.findall(r"[-+]?\d+", self.heard[-1].rpartition(":")[2].replace(" ", ""))
        return f"{sum(map(int, terms)) if self.knows else 12345}\n"


def story(person: Person, rounds: int = 6) -> tuple[list[Report], Node, Node]:
    """A node beside a person's; the reports of the node."""
    clock, network, taskset = FakeClock(), MemoryNetwork(0, FakeClock()), Taskset(CHARTER)
    graders = Graders(FAMILIES, workers=0)
    learners = (ScriptedLearner(0.0, 0.1, 1), PersonLearner(person.say, person.type))
    settings = (
        config("model.name=scripted", "eval.every=0", "round.foreign=2"),
        build.only_gives(load(None, [*SETTINGS])),
    )
    nodes = []
    for key, learner, one in zip(keys(2), learners, settings, strict=True):
        one = one.model_copy(update={"eval": one.eval.model_copy(update={"every": 0, "report": 6})})
        nodes.append(Node(key, taskset, one, learner, graders, network.attach(key.id), clock, NoEvents()))
    nodes[1].grader = Telling(graders, person.say)

    async def played() -> list[Report]:
        await connect(nodes)
        reports = []
        for _ in range(rounds):
            await play(nodes[1])
            reports.append(await play(nodes[0]))
            clock.advance(1.0)
        return reports

    return asyncio.run(played()), nodes[0], nodes[1]


def test_a_persons_right_answer_is_used_by_a_node_and_teaches_it() -> None:
    person = Person()
    reports, node, me = story(person)
    used = [group for report in reports for group in report.mixed.foreign]
    assert len(used) >= 5
    assert {group.author for group in used} == {me.key.id}
    assert all(group.rewards == (1.0, 0.0) for group in used)
    assert all(rollout.completion.tokens is None for group in used for rollout in group.rollouts)
    assert person.heard.count("right, and offered to your peers") == 6
    assert isinstance(node.learner, ScriptedLearner)
    assert node.learner.skill(used[0].task.ref.config) > 0.1


def test_a_wrong_answer_stays_here_and_the_person_is_told() -> None:
    person = Person(knows=False)
    reports, _, me = story(person)
    assert not [group for report in reports for group in (*report.mixed.foreign, *report.arrived.admitted)]
    assert sum(line.startswith("not right, and not shared; it is ") for line in person.heard) == 6
    assert me.state.round == 6


@pytest.mark.parametrize("typed", ["", f"{LEAVE}\n", f"  {LEAVE}  \n"])
def test_who_leaves_is_thanked_and_no_round_is_made_of_it(typed: str) -> None:
    person = Person()
    person.type = lambda: typed  # type: ignore[method-assign]
    with pytest.raises(Left, match="you have left"):
        story(person)


def test_an_empty_line_passes() -> None:
    learner = PersonLearner(lambda line: None, lambda: "\n")
    (task,) = Taskset(CHARTER).heldout("steer", 1)
    ((first, second),) = learner.generate([task], 2, Sampling())
    assert first.text == second.text == ""


def test_lines_may_be_typed_as_backslash_n_and_an_example_is_shown() -> None:
    heard: list[str] = []
    learner = PersonLearner(heard.append, lambda: "3 + 4 = 7\\nAnswer: 7\n")
    (task,) = Taskset(CHARTER).heldout("steer", 1)
    ((first, _),) = learner.generate([task], 2, Sampling())
    assert first.text == "3 + 4 = 7\nAnswer: 7"
    assert heard[0].startswith("\nfor example: ")
    assert heard[1] == f"\n{task.prompt[-1].content}"


def test_what_could_not_be_graded_is_said(tmp_path: Path) -> None:
    from waggle.core.types import Verdict

    (task,) = Taskset(CHARTER).heldout("steer", 1)
    assert told(task, Verdict(None, error="it took too long")) == "that could not be graded: it took too long"
