"""Putting a run together: the charter, the models, the nodes and their folders.

Models come before anything is written, the memory plan before the models, so that what cannot work is said
before anything is left behind. The keys of a local swarm follow from `run.seed`, so that a run can be repeated;
they never leave this machine. A node that joins others has a key of its own.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from waggle.core.blob import DiskBlobs
from waggle.core.clock import Clock
from waggle.core.config import Config
from waggle.core.errors import ModelError, TaskError
from waggle.core.events import EventLog
from waggle.core.keys import Key
from waggle.core.types import Charter, Family
from waggle.net.blobs import serve_blobs
from waggle.net.transport import Transport
from waggle.node.archive import DiskArchive
from waggle.node.endpoint import EndpointLearner
from waggle.node.evaluate import Grades
from waggle.node.learner import Learner, ModelLearner
from waggle.node.node import Node
from waggle.node.person import PersonLearner
from waggle.node.runfolder import RunFolder
from waggle.policy.load import load
from waggle.policy.logprobs import choose_packing
from waggle.policy.machine import keep_heap
from waggle.policy.memory import KV_BYTES, MemoryPlan, plan
from waggle.policy.policy import Policy
from waggle.swarm.charter import new_charter
from waggle.tasks.families import named_set, usable
from waggle.tasks.files import family_from_file, file_ids
from waggle.tasks.taskset import Taskset, require_distinct
from waggle.tasks.verdicts import is_builtin

Say = Callable[[str], None]
FILES = "tasks"
"""The folder of task files, inside a run or swarm folder."""


def local_key(seed: int, number: int) -> Key:
    """The key of a local swarm's node."""
    return Key.from_seed(hashlib.sha256(f"waggle local swarm {seed} {number}".encode()).digest())


def families_of(config: Config, files: Path) -> tuple[Family, ...]:
    """The families that a founded swarm holds: a named set, and a task file where one is given.

    Raises:
        TaskError: an unknown set, a bad file, or nothing that can be used.
    """
    families = usable(named_set(config.tasks.set)) if config.tasks.set != "none" else ()
    if config.tasks.file:
        families += (family_from_file(Path(config.tasks.file), config.tasks.grader, folder=files),)
    if not families:
        raise TaskError("tasks.set = 'none' leaves nothing to learn from; set tasks.file or choose a set")
    return families


def found_charter(
    config: Config, key: Key, name: str, files: Path, members: Sequence[bytes] = (), created_ms: int = 0
) -> Charter:
    """Found a swarm on this machine's configuration; families too small to hold questions out are refused.

    Questions follow from the charter. One that stays on this machine carries no time, so that the same key and
    families give the same questions in every run, and what two runs reached can be compared.

    Raises:
        TaskError: see `families_of`, or a family with too few questions.
    """
    families = families_of(config, files)
    require_distinct(families)
    return new_charter(key, name, families, created_ms=created_ms, members=members)


def bring_file(config: Config, charter: Charter, files: Path) -> None:
    """Keep a copy of the own task file in `files`, for a swarm that was founded with the same one.

    Raises:
        TaskError: the one given is not of the swarm, or the swarm names a Python function as grader that was not given.
    """
    for family in charter.families:
        if not is_builtin(family.grader) and family.grader != config.tasks.grader:
            raise TaskError(
                f"{family.label} is graded by {family.grader!r}, a function of the founder's; "
                "where you trust it, name it with --set tasks.grader, else leave this swarm"
            )
    if not config.tasks.file:
        return
    brought = family_from_file(Path(config.tasks.file), config.tasks.grader, folder=files)
    if brought.version not in {family.version for family in charter.families if family.source == "file"}:
        raise TaskError(f"the swarm {charter.name!r} does not ask questions of {config.tasks.file}; leave it out")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(config: Config) -> int:
    """Give torch its threads, once for the process; returns how many."""
    import torch

    threads = config.model.threads or cores()
    torch.set_num_threads(threads)
    return threads


def plan_memory(config: Config, num: int, keep: bool = False) -> MemoryPlan:
    """What `num` nodes, a process each, may use, made smaller where it does not fit.

    Args:
        keep: whether the run exists and must go on with the parameters it trains.

    Raises:
        ModelError: it does not fit however small, or only with other parameters than the run's.
    """
    model = config.model
    made = plan(
        model.name,
        lora_rank=model.lora_rank,
        token_budget=config.learn.token_budget,
        nodes=num,
        processes=num,
        memory_gb=model.memory_gb,
        device=model.device,
        precision=model.precision,
    )
    if keep and any("LoRA" in note for note in made.notes):
        raise ModelError(f"the run trains all weights, which does not fit now: {made.arithmetic()}; free some memory")
    return made


def fitted(config: Config, made: MemoryPlan) -> Config:
    """The configuration with what the plan made smaller."""
    smaller = made.lora_rank if made.notes else config.model.lora_rank
    model = config.model.model_copy(update={"lora_rank": smaller})
    learn = config.learn.model_copy(update={"token_budget": made.token_budget})
    return config.model_copy(update={"model": model, "learn": learn})


def load_policy(config: Config, kv_bytes: int = KV_BYTES) -> Policy:
    """The node's model. `kv_bytes` bounds its sampler's cache."""
    model = config.model
    options = {"device": model.device, "precision": model.precision, "seed": config.run.seed}
    policy = load(model.name, lora_rank=model.lora_rank, **options)  # type: ignore[arg-type]
    policy.kv_bytes = kv_bytes
    return policy


@dataclass
class Parts:
    """What the nodes of one process share."""

    config: Config
    charter: Charter
    files: Path
    grader: Grades
    clock: Clock


def only_gives(config: Config) -> Config:
    """The configuration of a node whose answers come from an endpoint: it trains on nobody's and is not evaluated."""
    alone = config.round.model_copy(update={"foreign": 0})
    unasked = config.eval.model_copy(update={"every": 0})
    return config.model_copy(update={"round": alone, "eval": unasked})


def make_learner(config: Config, keep: bool, say: Say) -> tuple[Learner, Config]:
    """What the node answers and learns with, within the memory there is, and the configuration made to fit.

    Args:
        keep: see `plan_memory`.

    Raises:
        WaggleError: no such model, it does not fit, or an endpoint that cannot be used.
    """
    if config.model.endpoint:
        return EndpointLearner(config.model), config
    if config.model.gives:
        return PersonLearner(say), config
    threads = set_threads(config)
    made = plan_memory(config, 1, keep)
    say(f"model {config.model.name}, {threads} thread{'s' if threads > 1 else ''}")
    for line in made.lines():
        say(line)
    if made.roomy and not made.on_gpu:
        keep_heap()
    config = fitted(config, made)
    policy = load_policy(config, made.kv_bytes)
    return ModelLearner(policy, config, choose_packing(policy), made.activation_bytes), config


def make_node(
    parts: Parts, folder: RunFolder, key: Key, learner: Learner, transport: Transport
) -> tuple[Node, DiskArchive]:
    """A node with its parts, and the archive it will begin or resume."""
    run = parts.config.run
    events = EventLog(folder.events_file, parts.clock, int(run.events_mb * 1e6))
    taskset = Taskset(parts.charter, parts.files)
    if parts.config.tasks.share_file:
        serve_blobs(transport, DiskBlobs(parts.files), file_ids(parts.charter.families))
    node = Node(key, taskset, parts.config, learner, parts.grader, transport, parts.clock, events)
    archive = DiskArchive(
        folder,
        run.keep_checkpoints,
        int(run.events_mb * 1e6),
        int(run.experience_mb * 1e6),
        int(run.record_mb * 1e6),
    )
    return node, archive


def labels(charter: Charter, short: bool = True) -> Sequence[str]:
    """Names of the families; with `short` only those answered without working."""
    return [f.label for f in charter.families if not (short and f.working)]
