"""Small swarms for tests: questions that a random model sometimes gets right, and nodes that learn from them."""

import json
from collections.abc import Sequence
from pathlib import Path

from waggle.core.clock import Clock, FakeClock
from waggle.core.config import Config, load
from waggle.core.events import NoEvents
from waggle.core.keys import Key
from waggle.core.types import Charter, Family
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.learner import Learner
from waggle.node.node import Node
from waggle.node.scripted import ScriptedLearner
from waggle.swarm.charter import new_charter
from waggle.tasks.files import family_from_file
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

TINY = (
    *(
        "model.name=tiny",
        "model.threads=1",
        "round.local=3",
        "round.foreign=2",
        "round.group_size=4",
        "round.refills=0",
    ),
    *("eval.every=4", "eval.steer=6", "eval.report=6", "learn.learning_rate=0.001", "tasks.share_file=false"),
)


def easy_family(folder: Path, num: int = 400) -> Family:
    """Questions whose answer is any text with a byte that a random model writes now and then."""
    file = folder / "easy.jsonl"
    lines = [{"question": f"letter {i}?", "answer": "(?s).*[a-mA-M0-4].*"} for i in range(num)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return family_from_file(file, "regex", folder=folder / build.FILES, shots=0, max_tokens=4)


def config(*overrides: str) -> Config:
    """The small configuration."""
    return load(None, [*TINY, *overrides])


def keys(num: int) -> list[Key]:
    """Keys of a test swarm."""
    return [build.local_key(7, number) for number in range(num)]


def charter_of(families: Sequence[Family], num: int = 1) -> Charter:
    """A charter by the first key."""
    return new_charter(keys(num)[0], "test", families, created_ms=1_700_000_000_000)


def scripted_swarm(
    families: Sequence[Family],
    num: int,
    settings: Config,
    *,
    clock: Clock | None = None,
    network: MemoryNetwork | None = None,
    learners: Sequence[Learner] = (),
    files: Path | None = None,
) -> list[Node]:
    """Nodes with scripted models on one in-memory network, not yet online."""
    clock = clock or FakeClock()
    network = network or MemoryNetwork(0, clock)
    charter = charter_of(families)
    taskset = Taskset(charter, files)
    grader = Graders(families, workers=0)
    made = learners or [ScriptedLearner(0.4, 0.01, number, tokenizer=b"t" * 32) for number in range(num)]
    return [
        Node(key, taskset, settings, learner, grader, network.attach(key.id), clock, NoEvents())
        for key, learner in zip(keys(num), made, strict=True)
    ]
