"""What would keep Waggle from working on this machine: each finding is one line, with its cause and its cure.

Nothing is changed and the network is not used. What may die on broken installations (torch) is tried in a process
of its own, so that the doctor outlives its patients. Faults of a run folder are found without taking its lock.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from waggle.core.errors import ModelError, TaskError, WaggleError
from waggle.core.keys import Key, peer_name
from waggle.core.types import Charter
from waggle.node.runfolder import RunFolder, is_locked, node_folders, read_description, read_noun
from waggle.node.state import Snapshot
from waggle.policy import bundled, machine

PYTHONS = ((3, 11), (3, 14))
"""The first version of Python that is known to work, and the first that is not."""

_TRY_S = 180.0
_TRY = """
import torch
from transformers import AutoModelForCausalLM
square = torch.eye(64) @ torch.eye(64)
assert float(square.trace()) == 64.0, "a product of matrices is wrong"
print(torch.__version__, torch.get_num_threads())
"""
_BUNDLED_PARAMETERS = 134_515_008
_NODE_BYTES = 3_000_000_000


@dataclass(frozen=True)
class Finding:
    """One thing looked at. Example: `Finding("python 3.14 is not known to work", "use Python 3.11 to 3.13")`."""

    what: str
    cure: str = ""
    """What to do; empty where all is well."""


def examine(run: Path | None = None) -> Iterator[Finding]:
    """Look at everything, quick things first. Example: `[f for f in examine() if f.cure]`."""
    yield python(sys.version_info[:2])
    lacking = list(dependencies(importlib.metadata.requires("waggledance") or []))
    yield from lacking or [Finding("every dependency is there")]
    yield key(Path.home() / ".waggle" / "key")
    yield from places()
    yield memory()
    if run is not None:
        yield from run_folder(run)
    if lacking:
        return  # what needs them would only say the same again
    yield graders()
    yield torch()


def python(version: tuple[int, ...]) -> Finding:
    """Whether this Python is known to work."""
    first, beyond = PYTHONS
    told = f"Python {version[0]}.{version[1]}"
    if first <= version[:2] < beyond:
        return Finding(told)
    return Finding(f"{told} is not known to work", f"use Python {first[0]}.{first[1]} to {beyond[0]}.{beyond[1] - 1}")


def dependencies(requirements: list[str]) -> Iterator[Finding]:
    """Packages that are missing or too old, of requirements such as `typer>=0.15`."""
    for requirement in requirements:
        name, least = re.fullmatch(r"([\w.-]+)(?:>=([\d.]+))?.*", requirement, re.DOTALL).groups()  # type: ignore[union-attr]
        if "extra ==" in requirement:
            continue
        wanted = f"{name}>={least}" if least else name
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(f"the package {name} is not installed", f"run `pip install '{wanted}'`")
            continue
        if least and _numbers(found) < _numbers(least):
            yield Finding(f"{name} {found} is too old", f"run `pip install --upgrade '{wanted}'`")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].strip(".").split(".") if part)  # type: ignore[index]


def key(file: Path) -> Finding:
    """Whether the user's key can be used."""
    if not file.exists():
        return Finding(f"no key at {file} yet; one is made when it is needed")
    try:
        return Finding(f"the key {file} is that of {peer_name(Key.load(file).id)}")
    except WaggleError as error:
        return _fault(error)


def places() -> Iterator[Finding]:
    """The bundled model, the cache it is converted into, and the disk that runs are written to."""
    cache = bundled.cache_folder()
    try:
        bundled.bundled_file()
        yield Finding(f"the bundled model {bundled.NAME} is installed")
    except ModelError as error:
        yield _fault(error)
    for folder, name in ((cache, "the model cache"), (Path.cwd(), "the current folder")):
        yield _writable(folder, name)
    yield disk(shutil.disk_usage(Path.cwd()).free)


def _writable(folder: Path, name: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding(f"{name} {folder} can be written")
    except OSError as error:
        return Finding(
            f"{name} {folder} cannot be written: {error.strerror}", "choose another, or mend its permissions"
        )


def disk(free_bytes: int) -> Finding:
    """Room for one node: a checkpoint (weights and two moments) and a model, each while it is replaced."""
    need_bytes = 2 * 4 * _BUNDLED_PARAMETERS * (3 + 1)
    told = f"{free_bytes / 1e9:.1f} GB of disk are free here; a node of the bundled model takes up to"
    told += f" {need_bytes / 1e9:.1f} GB"
    return Finding(told, "" if free_bytes >= need_bytes else "free some space, or start runs on another disk")


def memory(free_bytes: int | None = None) -> Finding:
    """Room in memory for one node of the bundled model, all weights trained."""
    free = machine.available_bytes() if free_bytes is None else free_bytes
    told = f"{free / 1e9:.1f} GB of memory are free; a node of the bundled model takes up to {_NODE_BYTES / 1e9:.1f} GB"
    return Finding(told, "" if free >= _NODE_BYTES else "close other programs, or train with --set model.lora_rank=16")


def graders() -> Finding:
    """Whether a grading process starts and knows right from wrong."""
    from waggle.swarm.charter import new_charter
    from waggle.tasks.families import family
    from waggle.tasks.grade import Graders
    from waggle.tasks.stream import Cursor
    from waggle.tasks.taskset import Taskset

    me = Key.from_seed(bytes(32))
    try:
        sums = family("chain_sum")
        tasks, _ = Taskset(new_charter(me, "tried", [sums], created_ms=0)).draw(me.id, Cursor(), 1)
        with Graders([sums]) as running:
            rewards = [v.reward for v in running.grade([(tasks[0], tasks[0].truth), (tasks[0], "no number")])]
    except TaskError as error:
        return Finding(str(error), "install waggle again")
    if rewards != [1.0, 0.0]:
        return Finding(f"a grading process gave {rewards} to a right and a wrong answer", "install waggle again")
    return Finding("a grading process starts and grades")


def torch() -> Finding:
    """Whether torch computes and transformers can be imported, in a process of their own."""
    cure = "install it again: `pip install --force-reinstall torch transformers`"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(f"torch did not answer within {_TRY_S:.0f} s", cure)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"the process ended with code {tried.returncode}"])[-1]
        return Finding(f"torch does not work: {last}", cure)
    version, threads = tried.stdout.split()[-2:]
    return Finding(f"torch {version} computes with {threads} threads on {os.cpu_count()} cores")


def run_folder(path: Path) -> Iterator[Finding]:
    """Whether a run can be resumed."""
    try:
        folders = node_folders(path)
    except WaggleError as error:
        yield _fault(error)
        return
    for folder in map(RunFolder, folders):
        if is_locked(folder.path):
            yield Finding(f"{folder.path} is in use by a process that is running; its checkpoints were not looked at")
            continue
        try:
            yield _node(folder)
        except WaggleError as error:
            yield _fault(error)


def _node(folder: RunFolder) -> Finding:
    read_description(folder.path)
    folder.config()
    read_noun(Charter, folder.charter_file)
    if folder.key_file.exists():
        Key.load(folder.key_file)
    newest = folder.newest_checkpoint()
    if newest is None and folder.metrics_file.exists():
        return Finding(f"{folder.path} has lost its checkpoints", "start a new run")
    if newest is None:
        return Finding(f"{folder.path} can be resumed from its start")
    snapshot = read_noun(Snapshot, newest / "state.bin")
    for name in ("weights.safetensors", "optimiser.safetensors") if snapshot.state.round else ():
        if not is_whole(newest / name):
            return Finding(f"{newest / name} is missing or incomplete", "start a new run; model/ can still be used")
    return Finding(f"{folder.path} can be resumed from round {snapshot.state.round} and what its journal holds")


def is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    try:
        with open(file, "rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(min(size, 100_000_000)))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return file.stat().st_size == 8 + size + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def _fault(error: WaggleError) -> Finding:
    """An error's sentence, cut where it goes on to what to do."""
    what, _, cure = str(error).rpartition("; ")
    return Finding(what, cure) if what else Finding(cure, "mend it, or start anew without it")
