"""A run from its first line on the screen to its last: `waggle swarm` and `waggle join`.

Models are loaded and the baseline is measured; nodes take turns until time or rounds are over, or somebody
presses Ctrl-C; then every node is checkpointed, says goodbye, and what its `model/` can do is measured on
questions that steered nothing.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from waggle.core.clock import SystemClock
from waggle.core.codec import encode
from waggle.core.config import Config
from waggle.core.files import write_atomic
from waggle.core.keys import Key
from waggle.core.types import Charter
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.evaluate import Score
from waggle.node.node import Node
from waggle.node.round import Report
from waggle.node.runfolder import RunFolder, node_folders, read_noun
from waggle.node.swarm import Turns, connect, part, play_turns
from waggle.node.view import View, score_table
from waggle.policy.load import load
from waggle.policy.machine import keep_heap
from waggle.policy.memory import MemoryPlan
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate
from waggle.tasks.grade import Graders


@dataclass
class Session:
    """A run being played."""

    console: Console
    path: Path
    config: Config
    charter: Charter
    nodes: list[Node]
    folders: list[RunFolder]
    graders: Graders
    plan: MemoryPlan

    @property
    def played_s(self) -> float:
        """Seconds of training so far, over all nodes and starts."""
        return sum(node.state.trained_s for node in self.nodes)

    def close(self) -> None:
        """End the graders and give the folders back."""
        self.graders.close()
        for folder in self.folders:
            folder.close()


def start(console: Console, path: Path, config: Config, keys: Sequence[Key], charter: Charter) -> Session:
    """A new run with one node a key, all in this process.

    Raises:
        WaggleError: whatever is wrong with model, tasks, memory or disk, in one sentence.
    """
    num = len(keys)
    with ExitStack() as undo:
        session = undo.enter_context(closing(_prepare(console, path, config, charter, num)))
        config = session.config
        if num > 1:
            build.describe_swarm(path, num)
        paths = [path / f"node-{number}" for number in range(1, num + 1)] if num > 1 else [path]
        parts = _parts(session, path)
        for node_path, key, policy in zip(paths, keys, _policies(session, num), strict=True):
            folder = RunFolder.create(node_path, config, charter)
            session.folders.append(folder)
            key.save(folder.key_file)
            node, archive = build.make_node(parts, folder, key, policy)
            node.begin(archive)
            session.nodes.append(node)
        undo.pop_all()
    return session


def resume(console: Console, path: Path, overrides: Callable[[Config], Config]) -> Session:
    """The nodes of an existing run, as they were.

    Raises:
        WaggleError: nothing to resume, in use, of another version, or damaged.
    """
    with ExitStack() as undo:
        folders = [undo.enter_context(closing(RunFolder.open(folder))) for folder in node_folders(path)]
        config, charter = overrides(folders[0].config()), folders[0].charter()
        session = undo.enter_context(closing(_prepare(console, path, config, charter, len(folders), keep=True)))
        parts = _parts(session, path)
        for folder, policy in zip(folders, _policies(session, len(folders)), strict=True):
            node, archive = build.make_node(parts, folder, Key.load(folder.key_file), policy)
            replayed = node.resume(archive)
            console.print(f"{folder.path.name} goes on after round {node.state.round} ({replayed} rounds replayed)")
            session.nodes.append(node)
            session.folders.append(folder)
        undo.pop_all()
    return session


def _prepare(console: Console, path: Path, config: Config, charter: Charter, num: int, keep: bool = False) -> Session:
    threads = build.set_threads(config)
    made = build.plan_memory(config, num, keep)
    console.print(f"{num} node{'s' if num > 1 else ''}, model {config.model.name}, {threads} threads")
    for line in made.lines():
        console.print(line, highlight=False)
    if made.roomy and not made.on_gpu:
        keep_heap()
    graders = Graders(charter.families, functions=bool(config.tasks.file))
    return Session(console, path, build.fitted(config, made), charter, [], [], graders, made)


def _policies(session: Session, num: int) -> list[Policy]:
    return build.load_policies(session.config, num, session.plan.kv_bytes)


def _parts(session: Session, path: Path) -> build.Parts:
    clock = SystemClock()
    network = MemoryNetwork(session.config.run.seed, clock)
    files, plan = path / build.FILES, session.plan
    return build.Parts(session.config, session.charter, files, session.graders, clock, network, plan.activation_bytes)


async def run(session: Session) -> None:
    """Play the session to its end and show what came of it."""
    try:
        await _play(session)
    finally:
        session.close()


async def _play(session: Session) -> None:
    console, config = session.console, session.config
    console.print(session.nodes[0].learner.describe(), highlight=False)
    before = _baseline(session)
    limit_s = 60 * config.run.minutes
    with _interruptible() as stopped, View(console, session.nodes, config.round.foreign) as view:
        await connect(session.nodes)

        def over() -> bool:
            return stopped() or bool(limit_s and session.played_s >= limit_s)

        def on_round(node: Node, report: Report) -> None:
            view.show(node, report, _footer(session, limit_s, report))

        await play_turns(Turns(session.nodes, config.run.seed), over, config.run.rounds, on_round)
        interrupted = stopped()
    if interrupted:
        console.print("stopping: the last round is complete, writing checkpoints ...")
    for node in session.nodes:
        node.close_steering()
    await part(session.nodes)
    _summary(session, before, interrupted)


def _footer(session: Session, limit_s: float, report: Report) -> str:
    played = session.played_s
    left = f", {max(0.0, limit_s - played) / 60:.1f} min left" if limit_s else ""
    return f"{played / 60:.1f} min of training{left}, {report.seconds:.1f} s a round; Ctrl-C ends cleanly"


def _baseline(session: Session) -> Score:
    """What the models can do before the first round; measured once, kept with the run."""
    file = session.path / "before.bin"
    if file.exists():
        return read_noun(Score, file)
    session.console.print(f"asking {session.config.eval.report} held-out questions before the first round ...")
    score = session.nodes[0].report()
    write_atomic(file, encode(score))
    return score


def _summary(session: Session, before: Score, interrupted: bool) -> None:
    console, nodes = session.console, session.nodes
    if interrupted:
        for folder in session.folders:
            model = folder.model if folder.model.exists() else "none yet"
            console.print(f"{folder.path.name}: model so far in {model}")
        console.print(f"go on with: waggle swarm --resume {session.path}", highlight=False)
        return
    console.print(f"asking {session.config.eval.report} held-out questions of every model ...")
    rows = [
        (folder.path.name, _exported_score(session, node, folder))
        for node, folder in zip(nodes, session.folders, strict=True)
    ]
    for name, score in rows:
        write_atomic(session.path / f"after-{name}.bin", encode(score))
    console.print(score_table(before, rows, build.labels(session.charter)))
    overlap = sum(int(node.totals["overlap"]) for node in nodes)
    console.print(f"held-out questions that were trained on: {overlap}")
    for folder in session.folders:
        console.print(f"{folder.path.name}: {folder.model}", highlight=False)
    console.print(f"talk to one: waggle chat {session.folders[0].model}", highlight=False)


def _exported_score(session: Session, node: Node, folder: RunFolder) -> Score:
    """What the model in `model/` does, loaded as a user would."""
    if node.state.best_round == node.state.round:
        return node.report()
    model = session.config.model
    policy = load(str(folder.model), device=model.device, precision=model.precision)
    return node.report(partial(generate, policy))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) asks for an end after the round; the second ends at once and loses that round."""
    asked = False

    def handler(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
