"""A recorded run played again: the same bits of all that came in, another model without a peer, and the page on it."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.node.parts import easy_family, keys
from waggle.core.clock import SystemClock
from waggle.core.config import load
from waggle.core.errors import ConfigError, RunError
from waggle.core.events import read_lines
from waggle.core.keys import Key, peer_name
from waggle.core.types import Peer
from waggle.net.memory import MemoryNetwork
from waggle.node import build, replaying
from waggle.node.best import close_steering
from waggle.node.recording import arrivals
from waggle.node.replaying import replay_command, replays
from waggle.node.reporting import report_command
from waggle.node.round import play
from waggle.node.runfolder import RunFolder, describe
from waggle.node.session import open_node, prepare
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders

NODES, ROUNDS = 3, 6
SETS = (
    *("model.name=tiny", "model.threads=1", "round.local=2", "round.foreign=2", "round.group_size=4"),
    *("round.refills=0", "eval.every=3", "eval.steer=4", "eval.report=12", "learn.learning_rate=0.003"),
    *("tasks.file=x", "tasks.share_file=true", "share.publish=all", "share.sampler=weighted"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a swarm whose nodes learned from each other and ended in order."""
    path = tmp_path_factory.mktemp("runs") / "swarm"
    path.mkdir()
    charter = new_charter(keys(1)[0], "test", [easy_family(path)], created_ms=1_700_000_000_000)
    config, network = load(None, list(SETS)), MemoryNetwork(0, SystemClock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waggle.node.session.Graders", partial(Graders, workers=0))
        sessions = []
        for number, key in enumerate(keys(NODES)):
            folder = prepare(path / f"node-{number + 1}", config, key, charter, [])
            sessions.append(open_node(screen(), folder, path / build.FILES, transport=network.attach(key.id)))
    describe(path, "swarm")

    async def story() -> None:
        peers: list[Peer] = []
        for session in sessions:
            peers.append(await session.node.start(peers))
        for _ in range(ROUNDS):
            for session in sessions:
                await play(session.node)
        for session in sessions:
            close_steering(session.node)
            session.node.checkpoint()
            await session.node.close()
            session.close()

    asyncio.run(story())
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it. Worker processes have their own tests."""
    monkeypatch.setattr("waggle.node.session.Graders", partial(Graders, workers=0))
    monkeypatch.setattr("waggle.node.asking.Graders", partial(Graders, workers=0))
    monkeypatch.setattr(replaying, "apart", here)
    return Path(shutil.copytree(made, tmp_path / "run"))


@contextmanager
def here() -> Iterator[Any]:
    yield lambda function, *args: function(*args)


def screen() -> Console:
    return Console(file=StringIO(), width=200)


def said(run: Path, node: str | None = "node-1", without: str | None = None, **options: Any) -> str:
    console = screen()
    replay_command(console, run, node, without, options.get("alone", False), options.get("rounds"))
    return printed(console)


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def name_of(node: Path) -> str:
    return peer_name(Key.load(RunFolder(node).key_file).id)


def lineages(path: Path) -> list[str]:
    return [str(line["lineage"]) for line in read_lines(path / "metrics.jsonl")]


def foreign(path: Path) -> int:
    return sum(int(line["foreign_groups"]) for line in read_lines(path / "metrics.jsonl"))


def test_the_same_weights_come_out_of_what_came_in(run: Path) -> None:
    for number in range(1, NODES + 1):
        node = run / f"node-{number}"
        assert "bit for bit" in said(run, node.name)
        again = node / "replays" / f"all-{ROUNDS}"
        assert lineages(again) == lineages(node)
        assert len(set(lineages(node))) == ROUNDS
        assert foreign(again) == foreign(node) > 0
        assert (again / "model" / "waggle.json").read_text() == (node / "model" / "waggle.json").read_text()


def test_other_bits_are_told_with_the_round_where_they_begin(run: Path) -> None:
    file = run / "node-1" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[3:]:
        line["lineage"] = "00" * 32
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "the weights differ from round 4 on" in said(run)


def test_without_a_peer_nothing_of_it_is_trained_on(run: Path) -> None:
    left_out = name_of(run / "node-2")
    text = said(run, "node-1", left_out)
    again = run / "node-1" / "replays" / f"without-{left_out}-{ROUNDS}"
    used = {line["peer"] for line in read_lines(again / "events.jsonl") if line["event"] == "used"}
    assert used == {name_of(run / "node-3")}
    assert lineages(again)[0] == lineages(run / "node-1")[0]
    assert lineages(again)[-1] != lineages(run / "node-1")[-1]
    assert f"node-1 as it was less without {left_out}" in text
    (found,) = replays(RunFolder(run / "node-1"))
    assert (found.label, found.rounds, found.worth.asked) == (f"without-{left_out}", ROUNDS, 12)
    assert found.worth.difference == pytest.approx(found.with_it - found.without)


def test_alone_every_group_is_its_own_and_the_page_says_what_the_swarm_gave(run: Path) -> None:
    said(run, "node-1", alone=True)
    assert foreign(run / "node-1" / "replays" / f"alone-{ROUNDS}") == 0
    console = screen()
    report_command(console, run)
    page = printed(console)
    assert f"alone, {ROUNDS} rounds: " in page
    assert "so the swarm gave " in page
    assert f"`waggle replay {run / 'node-2'} --alone` plays it" in page
    assert f"held-out questions: not asked yet; `waggle eval {run}`" in page
    for number in (2, 3):
        came = [
            one
            for arrival in arrivals(run / "node-1" / "arrivals.log")
            for one in arrival.admitted
            if peer_name(one.group.author) == name_of(run / f"node-{number}")
        ]
        row = next(line for line in page.splitlines() if line.split()[:1] == [name_of(run / f"node-{number}")])
        assert row.split()[1:3] == [str(len(came)), f"{sum(one.size_bytes for one in came) / 1000:.0f}"]


def test_fewer_rounds_are_compared_with_as_many(run: Path) -> None:
    text = said(run, "node-1", alone=True, rounds=3)
    assert "playing 3 rounds with all peers to compare" in text
    assert lineages(run / "node-1" / "replays" / "all-3") == lineages(run / "node-1")[:3]
    assert [(one.label, one.rounds) for one in replays(RunFolder(run / "node-1"))] == [("alone", 3)]


def test_a_stopped_replay_goes_on_and_a_finished_one_is_not_played_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = 0

    @contextmanager
    def after_two() -> Iterator[Any]:
        yield lambda: played >= 2

    async def counted(*args: Any) -> Any:
        nonlocal played
        played += 1
        return await play(*args)

    monkeypatch.setattr(replaying, "play", counted)
    with monkeypatch.context() as patch:
        patch.setattr(replaying, "interruptible", after_two)
        assert "the same command goes on" in said(run)
    assert played == 2
    assert "bit for bit" in said(run)
    assert played == ROUNDS
    assert "bit for bit" in said(run)
    assert played == ROUNDS


def test_all_nodes_but_the_peer_itself_are_replayed(run: Path) -> None:
    left_out = name_of(run / "node-2")
    said(run, None, left_out, rounds=2)
    assert [bool(replays(RunFolder(run / f"node-{number}"))) for number in (1, 2, 3)] == [True, False, True]


def test_what_cannot_be_replayed_is_said(run: Path) -> None:
    with pytest.raises(ConfigError, match="--alone leaves out everybody"):
        said(run, without="x", alone=True)
    with pytest.raises(ConfigError, match="has no node 'node-9'; it has node-1, node-2, node-3"):
        said(run, "node-9")
    with pytest.raises(ConfigError, match=f"no peer 'eve' in what was recorded; there are .*{name_of(run / 'node-2')}"):
        said(run, without="eve")
    with pytest.raises(ConfigError, match=f"has a record of {ROUNDS} rounds, not of 60"):
        said(run, rounds=60)
    (run / "node-1" / "arrivals.log").unlink()
    with pytest.raises(RunError, match="has no record of what came in"):
        said(run)
    said(run, "node-2", alone=True, rounds=1)
    (run / "node-2" / "replays" / "alone-1" / "replay.json").write_text("{}")
    with pytest.raises(RunError, match=r"replay\.json is damaged"):
        report_command(screen(), run)
