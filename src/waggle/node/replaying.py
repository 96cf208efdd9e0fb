"""`waggle replay`: a node played again on what peers gave it then, on all of it, on all but one peer's, or on none.

Everything else is as it was: key, questions, seed, model, settings. Own answers are given anew, for other weights
answer otherwise. Where nothing is left out every bit of the weights must come out as in the run, and that is checked;
where a peer is left out the difference on held-out questions, question by question, is what that peer was worth to
this node. What the others gave is taken as recorded: with one peer less the node might have asked them for more.

A replay is a run folder of its own, in `replays/` of the node's, and continues like one.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from waggle.core.clock import SystemClock
from waggle.core.errors import ConfigError, RunError
from waggle.core.events import json_line, read_lines
from waggle.core.files import write_atomic
from waggle.core.keys import Key, peer_name
from waggle.net.memory import MemoryNetwork
from waggle.node.arrival import Arrived, judge
from waggle.node.asking import outcomes_of
from waggle.node.best import close_steering
from waggle.node.comparison import Comparison, compare
from waggle.node.evaluate import Outcome, Score, scores
from waggle.node.joining import files_of
from waggle.node.node import Node
from waggle.node.recording import arrivals
from waggle.node.round import Gather, play
from waggle.node.runfolder import RunFolder, node_folders
from waggle.node.session import Session, interruptible, open_node, prepare
from waggle.node.state import Arrival
from waggle.node.swarming import Apart, apart
from waggle.node.view import comparison_table
from waggle.swarm.seen import Mark

ALL, ALONE, WITHOUT = "all", "alone", "without-"
_VERDICTS = ("announced", "admitted")
TOLD = 10
"""How often a replay says where it stands."""


@dataclass(frozen=True)
class Replay:
    """One that was played to its end, from `replay.json`. Rates are those of the report questions."""

    label: str
    rounds: int
    with_it: float
    without: float
    worth: Comparison
    """All questions: the run less the replay."""


def replay_command(
    console: Console, path: Path, node: str | None, without: str | None, alone: bool, rounds: int | None
) -> None:
    """Replay the nodes of a run and say what came of it.

    Args:
        node: the name of one node's folder; all nodes of a swarm otherwise.
        without: the name of the peer that is left out.
        alone: whether all peers are.
        rounds: how many; all that were recorded otherwise.

    Raises:
        ConfigError: no such node or peer.
        RunError: nothing was recorded, or the folder or the disk does not allow it.
    """
    if without and alone:
        raise ConfigError("--alone leaves out everybody already; leave out --without")
    folders = [RunFolder(folder) for folder in node_folders(path)]
    if node and node not in [folder.path.name for folder in folders]:
        raise ConfigError(f"{path} has no node {node!r}; it has {', '.join(folder.path.name for folder in folders)}")
    chosen = [folder for folder in folders if node in (None, folder.path.name)]
    recorded = {folder.path: _recorded(folder, rounds) for folder in chosen}
    label = ALONE if alone else f"{WITHOUT}{without}" if without else ALL
    if without:
        known = sorted({name for record in recorded.values() for name in _names(record)})
        if without not in known:
            raise ConfigError(f"no peer {without!r} in what was recorded; there are {', '.join(known) or 'none'}")
        chosen = [folder for folder in chosen if without in _names(recorded[folder.path])]
    with interruptible() as stop:
        for folder in chosen:
            if not _replay(console, folder, recorded[folder.path], label, stop):
                console.print("stopped; the same command goes on with it")
                return


def replays(folder: RunFolder) -> list[Replay]:
    """What replays of a node have shown, those of most rounds first."""
    found = []
    for file in folder.replays.glob("*/replay.json"):
        try:
            told = json.loads(file.read_bytes())
            worth = Comparison(*told["worth"][-1])
            found.append(Replay(told["label"], told["rounds"], told["with"], told["without"], worth))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RunError(f"{file} is damaged; delete its folder and replay again") from error
    return sorted(found, key=lambda replay: (-replay.rounds, replay.label))


def _recorded(folder: RunFolder, rounds: int | None) -> list[Arrival]:
    """What came in, as many rounds as wanted."""
    if folder.config().model.gives:
        raise RunError(f"{folder.path} only gives and learns nothing, so there is nothing to replay")
    record = arrivals(folder.arrivals_file)
    if not record:
        raise RunError(
            f"{folder.path} has no record of what came in: it has played no round, was begun with run.record_mb=0 or "
            "is of an earlier release"
        )
    if rounds and rounds > len(record):
        raise ConfigError(f"{folder.path} has a record of {len(record)} rounds, not of {rounds}; choose fewer --rounds")
    return record[: rounds or len(record)]


def _names(record: Sequence[Arrival]) -> set[str]:
    """Who gave something, or is judged by something."""
    given = {peer_name(one.group.author) for arrival in record for one in arrival.admitted}
    return given | {peer_name(deed.who) for arrival in record for deed in arrival.deeds}


def _replay(
    console: Console, origin: RunFolder, record: Sequence[Arrival], label: str, stop: Callable[[], bool]
) -> bool:
    """Play it, unless it has been, and say what it shows. False where somebody asked for an end before that."""
    played = _played(console, origin, record, label, stop)
    if played is None:
        return False
    if label == ALL:
        console.print(_same(origin, played, len(record)))
        return True
    whole = origin.model
    if not _ended_at(origin, len(record)):
        console.print(f"the run itself is at another round; playing {len(record)} rounds with all peers to compare")
        full = _played(console, origin, record, ALL, stop)
        if full is None:
            return False
        whole = full.model
    with apart() as there:
        _compare(console, there, origin, whole, played, label, len(record))
    return True


def _played(
    console: Console, origin: RunFolder, record: Sequence[Arrival], label: str, stop: Callable[[], bool]
) -> RunFolder | None:
    """The folder of a replay that has been played to its end, or None where somebody asked for an end."""
    path = origin.replays / f"{label}-{len(record)}"
    if not _ended_at(RunFolder(path), len(record)):
        session = _opened(console, origin, path)
        asyncio.run(_play(console, session, from_record(record, _kept(label)), len(record), stop))
    return RunFolder(path) if _ended_at(RunFolder(path), len(record)) else None


def _opened(console: Console, origin: RunFolder, path: Path) -> Session:
    """The node of a replay, where it stands."""
    key = Key.load(origin.key_file)
    if (path / "run.json").exists():
        folder = RunFolder.open(path)
    else:
        config = origin.config()
        settings = config.run.model_copy(update={"record_mb": 0.0, "minutes": 0.0, "hours": ""})
        folder = prepare(path, config.model_copy(update={"run": settings}), key, origin.charter(), [])
    console.print(f"{origin.path.name}: {path}", highlight=False)
    network = MemoryNetwork(0, SystemClock())
    return open_node(console, folder, files_of(origin.path), transport=network.attach(key.id))


async def _play(console: Console, session: Session, gather: Gather, rounds: int, stop: Callable[[], bool]) -> None:
    node = session.node
    try:
        await node.start()
        while node.state.round < rounds and not stop():
            done = await play(node, gather)
            if done.number % max(1, rounds // TOLD) == 0:
                left_s = done.seconds * (rounds - done.number)
                groups = f"{len(done.mixed.local)} own and {len(done.mixed.foreign)} foreign groups"
                console.print(f"round {done.number} of {rounds}: {groups}, about {left_s / 60:.0f} min left")
        if node.state.round == rounds:
            close_steering(node)
        node.checkpoint()
    finally:
        await node.close()
        session.close()


def from_record(record: Sequence[Arrival], is_kept: Callable[[bytes], bool]) -> Gather:
    """What came in with each round, of those peers that are kept."""

    async def gather(node: Node, number: int, marks: list[Mark]) -> Arrived:
        was = record[number - 1]
        arrived = Arrived(marks=marks)
        for deed in was.deeds:
            if is_kept(deed.who):
                judge(node, arrived, deed)
                arrived.refused[deed.kind] += deed.kind not in _VERDICTS
        arrived.refused = +arrived.refused
        arrived.admitted = [one for one in was.admitted if is_kept(one.group.author)]
        arrived.took = [peer for peer in was.took if is_kept(peer)]
        return arrived

    return gather


def _kept(label: str) -> Callable[[bytes], bool]:
    left_out = label.removeprefix(WITHOUT)
    return lambda peer: label == ALL or (label != ALONE and peer_name(peer) != left_out)


def _ended_at(folder: RunFolder, rounds: int) -> bool:
    """Whether a run has ended in order, so that all its weights are there, after so many rounds."""
    newest = folder.newest_checkpoint()
    return newest is not None and int(newest.name.removeprefix("round_")) == rounds and folder.model.exists()


def _same(origin: RunFolder, played: RunFolder, rounds: int) -> str:
    """Whether the weights came out as they were."""
    was, now = (_lineages(folder) for folder in (origin, played))
    differs = next((number for number in range(1, rounds + 1) if was.get(number, "") != now.get(number, "")), None)
    if was.get(rounds) and was.get(rounds) == now.get(rounds):
        return f"{origin.path.name}: after {rounds} rounds the weights are those of the run, bit for bit"
    return (
        f"{origin.path.name}: the weights differ from round {differs} on; "
        "other threads, another machine or another release of torch compute other bits"
    )


def _lineages(folder: RunFolder) -> dict[int, str]:
    return {int(line["round"]): str(line["lineage"]) for line in read_lines(folder.metrics_file)}


def _compare(
    console: Console, there: Apart, origin: RunFolder, whole: Path, played: RunFolder, label: str, rounds: int
) -> None:
    """Ask both models, print what the peer or the swarm was worth, and keep it with the replay."""
    config, charter, files = origin.config(), origin.charter(), files_of(origin.path)
    console.print(f"asking both models {config.eval.report} held-out questions ...")
    with_it, without = (there(outcomes_of, str(model), charter, config, files) for model in (whole, played.model))
    worth = compare(without, with_it)
    console.print(comparison_table(f"{origin.path.name} as it was", label.replace(WITHOUT, "without "), worth))
    told: dict[str, Any] = {"label": label, "rounds": rounds, "with": _rate(with_it), "without": _rate(without)}
    told["worth"] = [list(one) for one in worth]
    write_atomic(played.path / "replay.json", json_line(told).encode())


def _rate(outcomes: Sequence[Outcome]) -> float:
    return Score(0, scores(outcomes), 0).over().rate
