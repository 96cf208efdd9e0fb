"""`waggle swarm`: several nodes on this machine, from the first line on the screen to the table at the end.

The nodes are processes of their own (`hive.py`), with cores and memory divided among them; this one plans, starts,
shows and measures. What a model can do is asked in a process of its own as well, before the first round and of every
node's `model/` at the end, so that the memory for it is there when it is needed and given back afterwards.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from rich.console import Console

from waggle.core.codec import encode
from waggle.core.config import Config, NetConfig, dump, load
from waggle.core.errors import ConfigError, RunError
from waggle.core.files import write_atomic
from waggle.core.keys import Key
from waggle.core.process import end_with_parent
from waggle.core.types import Charter, Peer
from waggle.node import build, hive
from waggle.node.asking import ask_model, show_run
from waggle.node.evaluate import Score
from waggle.node.hive import Hive
from waggle.node.place import keep_bootstrap
from waggle.node.runfolder import RunFolder, describe, migrate, node_folders, read_noun
from waggle.node.session import interruptible, prepare
from waggle.node.view import View

P = ParamSpec("P")
T = TypeVar("T")
LOOK_S = 0.25


class Apart:
    """A process of its own for what needs much memory for a while. Example: `with apart() as run: run(ask, model)`."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, function: "Callable[P, T]", *args: P.args, **options: P.kwargs) -> T:
        """What the function returns or raises there.

        Raises:
            RunError: the process died.
        """
        try:
            return self._pool.submit(function, *args, **options).result()
        except BrokenProcessPool as error:
            raise RunError(
                "a process that measured died; there may be too little memory, see `waggle doctor`"
            ) from error


@contextmanager
def apart() -> Iterator[Apart]:
    """A process that lives as long as the context."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=end_with_parent) as pool:
        yield Apart(pool)


def start(console: Console, path: Path, config: Config, keys: Sequence[Key], charter: Charter) -> None:
    """Write down a new swarm with one node a key, and measure the model before the first round.

    Raises:
        WaggleError: whatever is wrong with model, tasks, memory or disk, in one sentence.
    """
    _refuse_net(config)
    if config.model.gives:
        raise ConfigError("a server or a person only gives, and a swarm within one machine learns; use `waggle join`")
    with apart() as there:
        fitted, parts = _shares(console, there, config, len(keys))
        write_atomic(path / "config.toml", dump(fitted).encode())
        write_atomic(path / "charter.bin", encode(charter))
        _baseline(console, there, path, fitted, charter)
    us = [Peer(key.id, ",".join(part.net.listen)) for key, part in zip(keys, parts, strict=True)]
    for number, (key, part) in enumerate(zip(keys, parts, strict=True)):
        prepare(path / f"node-{number + 1}", part, key, charter, [*us[:number], *us[number + 1 :]]).close()
    describe(path, "swarm")


def _shares(
    console: Console, there: Apart, config: Config, num: int, keep: bool = False
) -> tuple[Config, list[Config]]:
    """The configuration made to fit, and what each node gets of the machine."""
    made = there(build.plan_memory, config, num, keep)
    fitted = build.fitted(config, made)
    threads = max(1, (config.model.threads or build.cores()) // num)
    told = f"{threads} thread{'s' if threads > 1 else ''} each" if num > 1 else f"{threads} threads"
    console.print(f"{num} node{'s' if num > 1 else ''}, model {config.model.name}, {told}")
    for line in made.lines():
        console.print(line, highlight=False)
    model = fitted.model.model_copy(update={"threads": threads, "memory_gb": made.budget_bytes / num / 1e9})
    nets = [fitted.net.model_copy(update={"listen": where}) for where in hive.addresses(num)]
    return fitted, [fitted.model_copy(update={"model": model, "net": net}) for net in nets]


def _baseline(console: Console, there: Apart, path: Path, config: Config, charter: Charter) -> Score:
    """What the model can do before the first round; measured once, kept with the run."""
    file = path / "before.bin"
    if not file.exists():
        console.print(f"asking {config.eval.report} held-out questions before the first round ...")
        write_atomic(file, encode(there(ask_model, config.model.name, charter, config, path / build.FILES)))
    return read_noun(Score, file)


def resume(console: Console, path: Path, overrides: Callable[[Config], Config]) -> None:
    """Continue the swarm in a folder, with its share of the machine as it is now.

    Raises:
        WaggleError: nothing to resume, in use, of another version, or damaged.
    """
    folder = RunFolder(path)
    with closing(_locked(folder)), apart() as there:
        migrate(path)
        config, charter = overrides(folder.config()), folder.charter()
        _refuse_net(config)
        paths = node_folders(path)
        _, parts = _shares(console, there, config, len(paths), keep=True)
        _baseline(console, there, path, config, charter)
        write_atomic(folder.config_file, dump(config).encode())
        us = [
            Peer(Key.load(RunFolder(node).key_file).id, ",".join(part.net.listen))
            for node, part in zip(paths, parts, strict=True)
        ]
        for number, (node, part) in enumerate(zip(paths, parts, strict=True)):
            write_atomic(RunFolder(node).config_file, dump(part).encode())
            keep_bootstrap(RunFolder(node), [*us[:number], *us[number + 1 :]])


def _refuse_net(config: Config) -> None:
    if config.net != NetConfig():
        raise ConfigError("[net] has no effect on a swarm within one machine; leave it out, or use `waggle join`")


def _locked(folder: RunFolder) -> RunFolder:
    folder.lock()
    return folder


def run(console: Console, path: Path) -> None:
    """Let the nodes of a swarm folder play to their end and show what came of it.

    Raises:
        RunError: another command is playing it, or a node kept dying.
    """
    folder = RunFolder(path)
    with closing(_locked(folder)):
        config, charter = load(folder.config_file), folder.charter()
        folders = [RunFolder(place) for place in node_folders(path)]
        interrupted, given_up = _play(console, path, RunFolder(folders[0].path).config(), folders)
        if interrupted:
            _say_stopped(console, path, folders)
            return
        with apart() as there:
            _summary(console, there, path, config, charter, folders)
        if given_up:
            raise RunError(f"given up: {', '.join(given_up)}; the log file in its folder has its last words")


def _play(console: Console, path: Path, config: Config, folders: Sequence[RunFolder]) -> tuple[bool, list[str]]:
    """Whether somebody asked for an early end, and which nodes were given up."""

    def say(text: str) -> None:
        console.print(text, highlight=False)

    with interruptible() as stopped, Hive(folders, say) as nodes, View(console, folders, config) as view:
        write_atomic(path / "network", f"{nodes.holder or ''}\n".encode())
        quit_by_s = 0.0
        while nodes.look():
            if stopped() and not quit_by_s:
                say("stopping: every node completes its round and writes a checkpoint ...")
                nodes.stop()
                quit_by_s = time.monotonic() + hive.QUIT_S
            if quit_by_s and time.monotonic() > quit_by_s:
                say(f"a node has not ended within {hive.QUIT_S:.0f} s and is killed; it loses the round in progress")
                break
            view.look()
            time.sleep(LOOK_S)
        view.look()
        (path / "network").unlink(missing_ok=True)
        return bool(quit_by_s), [member.folder.path.name for member in nodes.members if member.given_up]


def _say_stopped(console: Console, path: Path, folders: Sequence[RunFolder]) -> None:
    for folder in folders:
        model = folder.model if folder.model.exists() else "none yet"
        console.print(f"{folder.path.name}: model so far in {model}", highlight=False)
    console.print(f"go on with: waggle swarm --resume {path}", highlight=False)


def _summary(
    console: Console, there: Apart, path: Path, config: Config, charter: Charter, folders: Sequence[RunFolder]
) -> None:
    before = _baseline(console, there, path, config, charter)
    trained = [folder for folder in folders if folder.model.exists()]
    if not trained:
        raise RunError(f"no node of {path} has exported a model; {folders[0].log_file} has the last words of node-1")
    console.print(f"asking {config.eval.report} held-out questions of every model ...")
    rows = []
    for folder in trained:
        score = there(ask_model, str(folder.model), charter, config, path / build.FILES)
        write_atomic(path / f"after-{folder.path.name}.bin", encode(score))
        rows.append((folder.path.name, score))
    show_run(console, before, rows, charter, folders)
    for folder in trained:
        console.print(f"{folder.path.name}: {folder.model}", highlight=False)
    console.print(f"talk to one: waggle chat {trained[0].model}", highlight=False)
