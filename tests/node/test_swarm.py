"""Swarms on the in-memory network: what must go on whatever happens to peers (design, section 3, rules 1 to 3)."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.node.parts import config, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.core.types import Family, Peer
from waggle.net.memory import MemoryNetwork
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.status import sentence
from waggle.node.swarm import Turns, connect, play_turns, speed
from waggle.tasks.families import family

SETTINGS = config("model.name=scripted", "eval.every=0", "round.local=3", "round.foreign=3")


@pytest.fixture(scope="module")
def families() -> tuple[Family, ...]:
    return (family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),)


def run_rounds(
    nodes: Sequence[Node], rounds: int, clock: FakeClock, speeds: Sequence[float] = ()
) -> dict[str, list[Report]]:
    """Play every node to a round; reports by node."""
    reports: dict[str, list[Report]] = {node.name: [] for node in nodes}

    def on_round(node: Node, report: Report) -> None:
        reports[node.name].append(report)
        clock.advance(1.0)

    asyncio.run(_play(nodes, rounds, on_round, speeds))
    return reports


async def _play(
    nodes: Sequence[Node], rounds: int, on_round: Callable[[Node, Report], None], speeds: Sequence[float]
) -> None:
    await connect(nodes)
    await play_turns(Turns(nodes, 0, speeds), lambda: False, rounds, on_round)


def foreign(reports: Sequence[Report]) -> int:
    return sum(len(report.mixed.foreign) for report in reports)


def says(node: Node, report: Report) -> str:
    line = {
        "foreign_groups": len(report.mixed.foreign),
        "own_groups": len(report.mixed.local),
        "peers": len(node.exchange.transport.peers()),
        "refused": dict(report.arrived.refused),
    }
    return sentence(line, node.config.round.foreign)


def test_nodes_train_on_each_others_groups(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    nodes = scripted_swarm(families, 3, SETTINGS, clock=clock)
    reports = run_rounds(nodes, 12, clock)
    for node in nodes:
        used = [group.author for report in reports[node.name] for group in report.mixed.foreign]
        assert len(used) >= 20
        assert set(used) == {other.key.id for other in nodes if other is not node}
        assert all(not report.arrived.refused for report in reports[node.name])
        assert "sharing with 2 peers" in says(node, reports[node.name][-1])


def test_a_foreign_group_is_trained_on_once_and_never_pulled_beyond_twice_j(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    nodes = scripted_swarm(families, 4, SETTINGS, clock=clock)
    reports = run_rounds(nodes, 15, clock)
    for node in nodes:
        used = [group.id for report in reports[node.name] for group in report.mixed.foreign]
        assert len(used) == len(set(used))
        assert all(len(report.arrived.admitted) <= 6 for report in reports[node.name])


def test_equal_seeds_give_equal_swarms(families: tuple[Family, ...]) -> None:
    states = []
    for _ in range(2):
        clock = FakeClock()
        nodes = scripted_swarm(families, 3, SETTINGS, clock=clock)
        run_rounds(nodes, 8, clock)
        states.append([node.state for node in nodes])
    assert states[0] == states[1]
    assert len({state.lineage for state in states[0]}) == 3


def test_a_node_twenty_rounds_behind_goes_on_and_uses_fresh_work(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    nodes = scripted_swarm(families, 3, SETTINGS, clock=clock)
    reports = run_rounds(nodes, 40, clock, speeds=(1.0, 1.0, 0.3))
    slow = reports[nodes[2].name]
    assert len(slow) == 40
    assert nodes[0].state.round - 20 >= 12  # the others were done when it had played some twelve rounds
    assert foreign(slow[5:12]) == 7 * 3
    assert max(group.round for group in slow[10].mixed.foreign) - slow[10].number >= 20


def test_alone_a_node_trains_alone_and_says_so(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    (node,) = scripted_swarm(families, 1, SETTINGS, clock=clock)
    reports = run_rounds([node], 5, clock)[node.name]
    assert [report.number for report in reports] == [1, 2, 3, 4, 5]
    assert node.state.step >= 4
    assert says(node, reports[-1]) == "no peer reachable, training alone and trying again"


def test_when_all_peers_go_the_node_goes_on_and_when_they_return_it_shares_again(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    network = MemoryNetwork(0, clock)
    nodes = scripted_swarm(families, 3, SETTINGS, clock=clock, network=network)
    survivor, others = nodes[0], nodes[1:]

    async def story() -> list[Report]:
        await connect(nodes)
        reports = []
        for node in (*others, survivor, *others, survivor):
            reports.append(await play(node))
        network.split({survivor.key.id})
        for _ in range(8):
            reports.append(await play(survivor))
        alone = reports[-1]
        assert not alone.mixed.foreign
        assert says(survivor, alone).startswith("no peer reachable, training alone")
        for node in others:
            await play(node)
        network.heal()
        reports.append(await play(survivor))
        return reports

    back = asyncio.run(story())[-1]
    assert len(back.mixed.foreign) == 3
    assert survivor.state.round == 11


def test_a_late_joiner_finds_what_is_fresh_at_once(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    nodes = scripted_swarm(families, 3, SETTINGS, clock=clock)
    late = nodes[2]

    async def story() -> Report:
        await connect(nodes[:2])
        for _ in range(6):
            for node in nodes[:2]:
                await play(node)
                clock.advance(1.0)
        await late.start([Peer(nodes[0].key.id, "memory")])
        return await play(late)

    first = asyncio.run(story())
    assert first.number == 1
    assert len(first.mixed.foreign) == 3
    assert min(group.round for group in first.mixed.foreign) >= 5  # the newest first


def test_an_empty_pool_is_no_error(families: tuple[Family, ...]) -> None:
    clock = FakeClock()
    settings = config("eval.every=0", "share.publish=none", "round.local=3", "round.foreign=3")
    nodes = scripted_swarm(families, 2, settings, clock=clock)
    reports = run_rounds(nodes, 4, clock)
    last = reports[nodes[0].name][-1]
    assert foreign(reports[nodes[0].name]) == 0
    assert says(nodes[0], last) == "nothing new from 1 peer, training on own answers"


def test_turns_go_to_whose_round_would_end_first(families: tuple[Family, ...]) -> None:
    nodes = scripted_swarm(families, 5, SETTINGS)
    speeds = [1.0, 1.5, 1.0, 0.3, 1.2]
    turns, order = Turns(nodes, 0, speeds), list[int]()
    for limit in (4, 9):
        while node := turns.next(limit):
            assert turns.next(limit) is node  # asking changes nothing
            waiting = [i for i in range(5) if nodes[i].state.round < limit]
            first = min(waiting, key=lambda i: ((nodes[i].state.round + 1) / speeds[i], i))
            assert node is nodes[first]
            order.append(first)
            node.state = replace(node.state, round=node.state.round + 1)
    assert [order.count(i) for i in range(5)] == [9] * 5
    assert order[:3] == [1, 4, 0]


def test_speeds_are_seeded_and_unequal() -> None:
    speeds = [speed(3, number) for number in range(8)]
    assert speeds == [speed(3, number) for number in range(8)]
    assert len(set(speeds)) == 8
    assert all(1 <= s <= 1.5 for s in speeds)


@pytest.mark.slow
def test_sixty_four_nodes_play_two_hundred_rounds(families: tuple[Family, ...], tmp_path: Path) -> None:
    clock = FakeClock()
    settings = config("eval.every=0", "round.local=2", "round.foreign=2", "round.group_size=8")
    nodes = scripted_swarm(families, 64, settings, clock=clock)
    reports = run_rounds(nodes, 200, clock)
    assert all(node.state.round == 200 for node in nodes)
    played = [report for node in nodes for report in reports[node.name]]
    assert foreign(played) / len(played) > 1.9
    assert not any(report.arrived.refused for report in played)
    assert all(len(node.pool) <= 512 for node in nodes)
    skills = [node.learner.skill(next(iter(node.taskset.families))) for node in nodes]  # type: ignore[attr-defined]
    assert min(skills) > 0.3
