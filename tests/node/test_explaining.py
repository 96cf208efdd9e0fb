"""What is said of foreign groups, and how it is summed up."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.node.parts import charter_of, config, scripted_swarm
from waggle.cli import app, register
from waggle.core.clock import FakeClock
from waggle.core.events import EventLog
from waggle.core.keys import peer_name
from waggle.core.types import Family
from waggle.node.explaining import summary
from waggle.node.node import Node
from waggle.node.round import play
from waggle.node.runfolder import RunFolder
from waggle.node.swarm import connect
from waggle.tasks.families import family

SETTINGS = config(
    *("model.name=scripted", "eval.every=0", "round.local=4", "round.foreign=2"),
    *("share.sampler=weighted", "share.max_lag=3", "share.quota=1.0"),
)


@pytest.fixture(scope="module")
def families() -> tuple[Family, ...]:
    return (family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),)


@pytest.fixture
def run(families: tuple[Family, ...], tmp_path: Path) -> tuple[Path, list[Node]]:
    """A run folder whose events are those of one of three nodes, and the nodes."""
    path, clock = tmp_path / "run", FakeClock()
    RunFolder.create(path, SETTINGS, charter_of(families)).close()
    nodes = scripted_swarm(families, 3, SETTINGS, clock=clock)
    nodes[0].events = EventLog(path / "events.jsonl", clock)

    async def story() -> None:
        await connect(nodes)
        for _ in range(12):
            for node in nodes:
                await play(node)
                clock.advance(1.0)

    asyncio.run(story())
    return path, nodes


def test_every_foreign_group_ends_in_one_reason(run: tuple[Path, list[Node]]) -> None:
    path, (me, *others) = run
    found = {one.peer: one for one in summary(RunFolder(path))}
    assert set(found) == {peer_name(other.key.id) for other in others}
    assert sum(one.used for one in found.values()) == me.pool.counts["used"] >= 20
    unused = sum(one.not_used.get("expired", 0) for one in found.values())
    assert unused == me.pool.counts["expired"] > 0
    assert me.pool.counts["inserted"] == me.pool.counts["used"] + unused + len(me.pool)
    for one in found.values():
        assert set(one.factors) == {"learnability", "freshness", "novelty", "trust", "likeness", "brevity"}
        assert all(0 < value <= 1 for value in one.factors.values())


def test_the_command_prints_a_row_a_peer(run: tuple[Path, list[Node]]) -> None:
    register()
    path, (_, *others) = run
    result = CliRunner().invoke(app, ["pool", "explain", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for other in others:
        row = next(line for line in result.stdout.splitlines() if line.strip().startswith(peer_name(other.key.id)))
        assert "expired" in row
        assert "learnability 0." in row


def test_a_run_without_peers_says_so(families: tuple[Family, ...], tmp_path: Path) -> None:
    register()
    RunFolder.create(tmp_path / "run", SETTINGS, charter_of(families)).close()
    result = CliRunner().invoke(app, ["pool", "explain", str(tmp_path / "run")])
    assert "has not met any experience of peers" in " ".join(result.stdout.split())
