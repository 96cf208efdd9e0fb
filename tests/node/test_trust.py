"""Trust in whole rounds: who sends bad experience is left out for a while, who only takes is given less."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.node.crafted import BASE, EVE, SUMS, Swarm, body, drawn, is_train, sealed
from tests.node.exchanges import CHARTER, GOOD, World, never, offered
from tests.node.exchanges import EVE as EVE_TOO
from tests.node.exchanges import sealed as good_round
from tests.node.parts import charter_of, config, scripted_swarm
from waggle.core.codec import decode, decode_stored, encode
from waggle.core.errors import DecodeError
from waggle.core.keys import peer_name
from waggle.core.types import Answers, Experience, Peer
from waggle.net.memory import MemoryNetwork
from waggle.node.archive import DiskArchive
from waggle.node.exchange import MAX_BATCH_BYTES, PULL, Exchange, Pull
from waggle.node.node import Node
from waggle.node.parcel import Parcel
from waggle.node.round import play
from waggle.node.runfolder import RunFolder
from waggle.node.state import Heard, Snapshot, State
from waggle.swarm.admission import Reason
from waggle.swarm.batch import unpack_batch
from waggle.swarm.sampling import Offer
from waggle.swarm.trust import DECAY, FIRST_ROUNDS, FLOOR


class Told:
    """Events, kept."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    def of(self, *events: str) -> list[tuple[Any, ...]]:
        return [(e["event"], e["peer"], e["reason"]) for e in self.lines if e["event"] in events]


def good(node: Node, number: int, num: int = 1) -> list[Experience]:
    """Eve's round of this number, as it should be."""
    tasks = [drawn(node, EVE, is_train(node), 6 * number + i) for i in range(num)]
    return sealed(node, [body(task, (task.truth, f"no{number}"), round=number) for task in tasks], number)


def broken(node: Node, number: int, num: int = 6) -> list[Experience]:
    """The same of questions that she was never dealt."""
    ref = drawn(node, EVE, is_train(node)).ref
    bad = [replace(ref, index=4000 - i, seed=number) for i in range(num)]
    task = drawn(node, EVE, is_train(node))
    return sealed(node, [body(task, ("1", "2"), task=one, round=number) for one in bad], number)


@pytest.mark.parametrize("trust", [True, False])
def test_a_peer_with_broken_questions_is_left_out_and_returns(trust: bool) -> None:
    swarm = Swarm(1, f"share.trust={str(trust).lower()}")
    (node,) = swarm.nodes
    node.events = told = Told()
    refused: list[dict[str, int]] = []

    async def story() -> None:
        await node.start()
        eve = await swarm.eve()
        await eve.offer(1, broken(node, 1))
        for number in range(2, FIRST_ROUNDS + 5):
            ((report,),) = await swarm.rounds(1)
            refused.append(dict(report.arrived.refused))
            await eve.offer(number, good(node, number))

    asyncio.run(story())
    name = peer_name(EVE.id)
    admitted = [a.group.round for record in swarm.archives[0].records for a in record.admitted]
    if not trust:
        assert refused == [{"not-drawn": 6}] + [{}] * (FIRST_ROUNDS + 2)
        assert told.of("quarantined", "released") == []
        assert node.weight(EVE.id) == 1
        return
    assert refused == [{"not-drawn": 6}, *[{"quarantined": 1}] * FIRST_ROUNDS, {}, {}]
    assert told.of("quarantined", "released") == [(e, name, "not-drawn") for e in ("quarantined", "released")]
    assert admitted == [FIRST_ROUNDS + 2, FIRST_ROUNDS + 3]
    assert FLOOR < node.weight(EVE.id) < 0.3
    assert node.trust.standing(EVE.id).admitted > 1.9


def test_what_was_asked_for_before_the_quarantine_comes_too_late() -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    experiences = good(node, 3, 2)
    node.trust.restore([replace(node.trust.standing(EVE.id), quarantined_until=50, times=1, reason="family")])
    node.archive.take_parcel = lambda num, size: Parcel(node.taskset.digest, tuple(map(encode, experiences)))  # type: ignore[method-assign]
    asyncio.run(node.start())
    report = asyncio.run(play(node))
    assert report.arrived.refused == {"quarantined": 2}
    assert not report.arrived.admitted
    assert EVE.id not in {mark.author for mark in report.arrived.marks}


def test_what_the_exchange_refused_is_held_against_its_sender_once_a_round() -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    for reason in (Reason.SIGNATURE, Reason.SIGNATURE, Reason.SCHEMA, Reason.TOO_MANY):
        node.exchange._refuse(EVE.id, reason, "no")
    asyncio.run(node.start())
    report = asyncio.run(play(node))
    assert report.arrived.refused == {"signature": 2, "schema": 1, "too-many": 1}
    standing = node.trust.standing(EVE.id)
    assert (standing.refused, standing.implausible) == (DECAY, 2 * DECAY)


class Counted:
    """How much a node asks another for, and gets."""

    def __init__(self, node: Node, giver: Node) -> None:
        self.pulls: list[tuple[int, int]] = []
        real: Any = node.exchange.pull

        async def pull(peer: bytes, offers: Sequence[Offer]) -> list[bytes]:
            got: list[bytes] = await real(peer, offers)
            if peer == giver.key.id:
                self.pulls.append((len(offers), len(got)))
            return got

        node.exchange.pull = pull  # type: ignore[method-assign]


@pytest.mark.parametrize("tit_for_tat", [True, False])
def test_a_free_rider_gets_the_floor_while_a_slow_peer_that_gives_gets_all(tit_for_tat: bool) -> None:
    swarm = Swarm(3, f"share.tit_for_tat={str(tit_for_tat).lower()}")
    giver, rider, slow = swarm.nodes
    rider.config = config(*BASE, "share.publish=none")
    taken, slowly = Counted(rider, giver), Counted(slow, giver)

    async def story() -> int:
        for node in swarm.nodes:
            await node.start([Peer(other.key.id, "memory") for other in swarm.nodes if other is not node])
        trained = 0
        for number in range(120):
            for node in (giver, rider, *([slow] if number % 8 == 0 else [])):
                report = await play(node)
                trained += len(report.mixed.foreign) if node is rider and number >= 100 else 0
            swarm.clock.advance(1.0)
        return trained

    foreign = asyncio.run(story())
    assert len(slowly.pulls) >= 14
    assert all(asked == got for asked, got in slowly.pulls)
    assert all(asked == got for asked, got in taken.pulls[:6])
    if tit_for_tat:
        assert all(got == 1 for _, got in taken.pulls[-20:])
        assert giver.trust.share(rider.key.id, 0.25) == 0.25
    else:
        assert all(asked == got for asked, got in taken.pulls)
    assert foreign >= 20  # nobody is starved
    assert giver.trust.share(slow.key.id, 0.25) == 1


def test_a_share_is_of_the_newest_and_is_given_once_a_round() -> None:
    async def story() -> None:
        world = World(never)
        await world.meet()
        for number in range(1, 5):
            await world.good.offer(number, good_round(number))
        ids = [offer.entry.id for number in range(1, 5) for offer in offered(good_round(number))]

        async def given() -> list[int]:
            body = encode(Pull(CHARTER, tuple(ids)))
            reply = await world.eve.request(GOOD.id, PULL, body, timeout_s=1)
            return sorted(decode(Answers, data).number for data in unpack_batch(reply, MAX_BATCH_BYTES, 10))

        assert await given() == [*range(8)]
        world.good.serve_by({EVE_TOO.id: 0.5})
        assert await given() == [4, 5, 6, 7]
        assert await given() == []
        world.good.serve_by({EVE_TOO.id: 0.01})
        assert await given() == [6]
        world.good.serve_by({})
        assert await given() == await given() == [*range(8)]
        assert world.good.take_takers() == [EVE_TOO.id] * 6
        assert world.good.take_takers() == []

    asyncio.run(story())


def opened(path: Path, network: MemoryNetwork, swarm: Swarm) -> tuple[Node, DiskArchive]:
    """A node of a run folder, made where there is none."""
    sets = config(*BASE[:1], "eval.every=3", "eval.steer=8", "round.local=3", "round.foreign=3")
    (node,) = scripted_swarm((SUMS,), 1, sets, clock=swarm.clock, network=network)
    exists = (path / "run.json").exists()
    folder = RunFolder.open(path) if exists else RunFolder.create(path, sets, charter_of((SUMS,)))
    archive = DiskArchive(folder, 1, 1 << 20, 1 << 20)
    node.resume(archive)
    return node, archive


async def eventful(path: Path, stops: Sequence[int]) -> list[State]:
    """The states of a node beside Eve, who is good, then bad, then good; it is killed after some rounds."""
    swarm = Swarm(0)
    node, archive = opened(path, swarm.network, swarm)
    eve = Exchange(
        swarm.network.attach(EVE.id), node.taskset.digest, node.config.share.model_copy(), node.events, swarm.clock
    )
    await node.start()
    await eve.start([Peer(node.key.id, "memory")])
    states = []
    for number in range(1, FIRST_ROUNDS + 9):
        made = broken(node, number) if 6 <= number < 8 else good(node, number, 2)
        await eve.offer(number, made)
        await play(node)
        states.append(node.state)
        swarm.clock.advance(1.0)
        if number in stops:
            swarm.network.kill(node.key.id)
            archive.close()
            node, archive = opened(path, swarm.network, swarm)
            await node.start([Peer(EVE.id, "memory")])
        if number == 9:
            node.checkpoint()
    archive.close()
    return states


def test_a_resumed_run_equals_the_straight_run_with_all_that_is_thought_of_peers(tmp_path: Path) -> None:
    straight = asyncio.run(eventful(tmp_path / "straight", ()))
    killed = asyncio.run(eventful(tmp_path / "killed", (2, 6, 12, 23)))
    assert killed == straight
    quarantined = [bool(one.quarantined_until) for state in straight for one in state.standings]
    assert 0 < sum(quarantined) <= FIRST_ROUNDS
    assert not quarantined[-1]
    assert straight[-1].standings[0].judged > 0
    assert straight[-1].standings[0].times == 1
    assert straight[-1].last_rate >= 0


def test_the_state_of_an_earlier_release_is_read_as_it_is() -> None:
    new = State(lineage=b"l" * 32, round=3, heard=(Heard(b"a" * 32, 5),), totals={"overlap": 0.0})
    fields = [getattr(new, name) for name in State.__struct_fields__[:-2]]
    old = b"\x01" + msgspec.msgpack.encode([fields, b"b" * 32, b"", b"", []])
    assert decode_stored(Snapshot, old, 1 << 20) == Snapshot(new, b"b" * 32, b"", b"", ())
    with pytest.raises(DecodeError, match="not in canonical form"):
        decode(Snapshot, old)
