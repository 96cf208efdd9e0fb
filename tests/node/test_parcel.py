"""Experience by file: a parcel is made, carried and taken in under the same checks as what comes by network."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.node.crafted import EVE, SUMS, body, drawn, is_train, sealed
from tests.node.parts import config, keys, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.core.codec import decode, encode
from waggle.core.errors import RunError
from waggle.core.types import Experience
from waggle.net.memory import MemoryNetwork
from waggle.node.archive import DiskArchive
from waggle.node.journal import read_records
from waggle.node.node import Node
from waggle.node.parcel import Inbox, Parcel, export, offered, older_than, parcel_for, read_parcel
from waggle.node.round import Report, play
from waggle.node.runfolder import RunFolder
from waggle.node.scripted import ScriptedLearner
from waggle.swarm import admission

BASE = ("model.name=scripted", "eval.every=0", "round.local=3", "round.foreign=4", "share.publish=all")


class Far:
    """Two nodes of one swarm on disk that no network joins. `me` is the second."""

    def __init__(self, path: Path, *sets: str) -> None:
        settings = config(*BASE, *sets)
        self.clock = FakeClock()
        self.folders, self.nodes = [], []
        for number in range(2):
            learners = [ScriptedLearner(0.4, 0.01, seed) for seed in range(2)]
            network = MemoryNetwork(number, self.clock)
            node = scripted_swarm((SUMS,), 2, settings, clock=self.clock, network=network, learners=learners)[number]
            folder = RunFolder.create(path / f"node-{number}", settings, node.taskset.charter)
            node.begin(DiskArchive(folder, 1, 1 << 20, 1 << 20))
            self.folders.append(folder)
            self.nodes.append(node)
        self.author, self.me = self.nodes

    def play(self, node: Node, rounds: int = 1) -> list[Report]:
        async def story() -> list[Report]:
            if not node.exchange.transport.peers():
                await node.start()
            reports = []
            for _ in range(rounds):
                reports.append(await play(node))
                self.clock.advance(1.0)
            return reports

        return asyncio.run(story())

    def carry(self, file: Path) -> int:
        """A parcel of the author's, put into my inbox; how many groups it holds."""
        count = export(self.folders[:1], file)
        Inbox(self.folders[1]).put(parcel_for(self.folders[1:], file))
        return count


@pytest.fixture
def far(tmp_path: Path) -> Far:
    return Far(tmp_path)


def waiting(folder: RunFolder) -> int:
    return len(list(folder.inbox.glob("*.parcel")))


def test_a_parcel_is_taken_in_like_what_came_by_network(far: Far, tmp_path: Path) -> None:
    far.play(far.author, 2)
    assert far.carry(tmp_path / "p") == 6
    (report,) = far.play(far.me)
    assert not report.arrived.refused
    assert len(report.arrived.admitted) == 6
    assert {group.author for group in report.mixed.foreign} == {keys(2)[0].id}
    assert waiting(far.folders[1]) == 0
    far.carry(tmp_path / "again")
    (report,) = far.play(far.me)
    assert report.arrived.refused == {"duplicate": 6}


def test_it_holds_what_is_on_offer_at_the_checkpoint_and_since(far: Far, tmp_path: Path) -> None:
    far.play(far.author, 2)
    far.author.checkpoint()
    far.play(far.author, 2)
    journal = next(far.folders[0].journals.glob("*.log"))
    with open(journal, "ab") as torn:
        torn.write(b"\0\0\1\0half a record")  # the node is writing at this moment
    before = journal.read_bytes()
    assert [e.body.round for e in offered(far.folders[0])] == [n for n in range(1, 5) for _ in range(3)]
    assert journal.read_bytes() == before
    assert export(far.folders[:1], tmp_path / "p") == 12
    rounds = [decode(Experience, data).body.round for data in read_parcel(tmp_path / "p").experiences]
    assert rounds == sorted(rounds, reverse=True)  # the newest first, should there be too much


def test_nothing_in_it_is_believed(far: Far) -> None:
    held = drawn(far.me, EVE, lambda task: far.me.taskset.bucket(task) == "report")
    good = drawn(far.me, EVE, is_train(far.me))
    one, other = sealed(far.me, [body(held, (held.truth, "x")), body(good, (good.truth, "x"))])
    forged = replace(other, seal=replace(other.seal, signature=bytes(64)))
    items = (encode(one), encode(forged), encode(other), b"junk", b"")
    Inbox(far.folders[1]).put(Parcel(far.me.taskset.digest, items))
    (report,) = far.play(far.me)
    assert report.arrived.refused == {"held-out": 1, "signature": 1, "version": 2}
    assert [group.task.ref for group in report.mixed.foreign] == [good.ref]


def test_what_is_too_old_is_refused_and_counted_beforehand(far: Far, tmp_path: Path) -> None:
    far.play(far.author)
    far.clock.advance(admission.Admission().max_age_s + 1)
    far.play(far.author)
    far.carry(tmp_path / "p")
    parcel = read_parcel(tmp_path / "p")
    assert older_than(parcel, far.clock.now_s() - admission.Admission().max_age_s) == 3
    assert older_than(Parcel(bytes(32), (b"junk",)), 1e9) == 0
    (report,) = far.play(far.me)
    assert (report.arrived.refused, len(report.arrived.admitted)) == ({"stale": 3}, 3)


@pytest.mark.parametrize(("data", "reason"), [(b"junk", "compression"), (None, "other-charter")])
def test_what_is_no_parcel_of_the_swarm_costs_itself(far: Far, data: bytes | None, reason: str) -> None:
    inbox = Inbox(far.folders[1])
    inbox.put(Parcel(b"d" * 32, (b"x",)))
    if data is not None:
        next(far.folders[1].inbox.glob("*.parcel")).write_bytes(data)
    (report,) = far.play(far.me)
    assert report.arrived.refused == {reason: 1}
    assert len(report.mixed.local) == 3
    assert waiting(far.folders[1]) == 0


def test_a_parcel_stays_until_its_round_is_final(far: Far, tmp_path: Path) -> None:
    far.play(far.author)
    far.carry(tmp_path / "p")
    assert far.me.archive.take_parcel(8, 1 << 20) is not None  # and the node is killed
    assert waiting(far.folders[1]) == 1
    far.play(far.me)
    assert waiting(far.folders[1]) == 0


def test_a_round_takes_no_more_than_it_may_pull(far: Far, tmp_path: Path) -> None:
    far.play(far.author, 6)
    assert far.carry(tmp_path / "p") == 18
    reports = far.play(far.me, 4)
    assert [len(report.arrived.admitted) for report in reports] == [8, 8, 2, 0]
    assert not any(report.arrived.refused for report in reports)
    assert waiting(far.folders[1]) == 0


def test_by_bytes_too_but_always_one(far: Far, tmp_path: Path) -> None:
    far.play(far.author)
    far.carry(tmp_path / "p")
    inbox = Inbox(far.folders[1])
    for max_bytes, expected in ((1, 1), (10_000, 2)):
        taken = inbox.take(8, max_bytes)
        assert taken is not None
        assert len(taken.experiences) == expected
        inbox.clear()
    assert inbox.take(8, 1 << 20) is None
    assert inbox.take(0, 1 << 20) is None


def test_what_cannot_be_read_or_taken_away_ends_no_run(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    far.folders[1].inbox.mkdir()
    (far.folders[1].inbox / "a.parcel").mkdir()
    (far.folders[1].inbox / "b.parcel").symlink_to("nowhere")
    Inbox(far.folders[1]).put(Parcel(far.me.taskset.digest, (b"junk",)))

    def refusing(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refusing)
        (report,) = far.play(far.me)
    assert report.arrived.refused == {"version": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refusing)
        Inbox(far.folders[1]).put(Parcel(far.me.taskset.digest, (b"more junk",)))
        (report,) = far.play(far.me)
    assert report.arrived.refused == {"framing": 1}


def test_an_export_while_the_node_stores_another_checkpoint(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    far.play(far.author, 2)
    rotated: list[int] = []

    def read(file: Path) -> tuple[list[bytes], int]:
        if not rotated:
            rotated.append(1)
            far.author.checkpoint()
        return read_records(file)

    monkeypatch.setattr("waggle.node.parcel.read_records", read)
    assert len(offered(far.folders[0])) == 6


def test_only_what_is_still_on_offer_is_exported(tmp_path: Path) -> None:
    far = Far(tmp_path, "share.max_lag=2")
    far.play(far.author, 5)
    assert [e.body.round for e in offered(far.folders[0])] == [4, 4, 4, 5, 5, 5]


def test_a_group_that_nobody_would_take_is_left_out(far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far.play(far.author)
    sizes = sorted(len(encode(experience)) for experience in offered(far.folders[0]))
    monkeypatch.setattr("waggle.node.parcel._ITEM_BYTES", sizes[-1] - 1)
    assert export(far.folders[:1], tmp_path / "p") == sum(size < sizes[-1] for size in sizes)


def test_only_so_much_fits(far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far.play(far.author, 4)
    monkeypatch.setattr("waggle.node.parcel.MAX_ITEMS", 5)
    assert export(far.folders[:1], tmp_path / "few") == 5
    monkeypatch.setattr("waggle.node.parcel.MAX_BYTES", 4096 + 1000)
    small = export(far.folders[:1], tmp_path / "small")
    assert 0 < small < 5
    assert len(encode(read_parcel(tmp_path / "small"))) < 4096 + 1000


def test_what_cannot_be_exported_is_said(far: Far, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has offered nothing yet"):
        export(far.folders[:1], tmp_path / "p")
    far.play(far.author)
    (tmp_path / "p").write_bytes(b"mine")
    with pytest.raises(RunError, match="exists already; choose another name"):
        export(far.folders[:1], tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == b"mine"
