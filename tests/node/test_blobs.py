"""Task files travel by digest, from several peers, and nothing else is given away."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from tests.node.parts import charter_of, easy_family
from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError, TaskError
from waggle.core.types import Peer
from waggle.net.memory import MemoryNetwork, MemoryTransport
from waggle.node import blobs, build
from waggle.tasks.taskset import Taskset

BIG = bytes(range(256)) * (3 * blobs.PIECE_BYTES // 256 + 7)


async def network_of(num: int) -> list[MemoryTransport]:
    network = MemoryNetwork(0, FakeClock())
    transports = [network.attach(bytes([number]) * 32) for number in range(1, num + 1)]
    for transport in transports:
        await transport.start()
    for transport in transports[1:]:
        await transport.join([Peer(transports[0].id, "memory")])
    return transports


def stored(folder: Path, data: bytes) -> bytes:
    digest = hashlib.sha256(data).digest()
    folder.mkdir(exist_ok=True)
    (folder / f"{digest.hex()}.jsonl").write_bytes(data)
    return digest


def test_a_swarms_task_file_travels_and_its_tasks_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    charter = charter_of([easy_family(tmp_path / "a")])
    giver, taker = tmp_path / "a" / build.FILES, tmp_path / "b"
    (digest,) = blobs.missing_files(charter, taker)
    assert blobs.missing_files(charter, giver) == []

    async def story() -> None:
        one, two = await network_of(2)
        blobs.serve_files(one, giver, {digest})
        await blobs.fetch_file(two, [one.id], digest, taker, 5.0)

    asyncio.run(story())
    assert blobs.missing_files(charter, taker) == []
    here, there = (Taskset(charter, folder).heldout("steer", 5) for folder in (giver, taker))
    assert here == there
    assert all(task.weak for task in there)


def test_a_file_of_several_pieces_goes_on_at_the_next_peer(tmp_path: Path) -> None:
    digest = stored(tmp_path / "a", BIG)

    async def story() -> None:
        good, dying, taker = await network_of(3)
        blobs.serve_files(good, tmp_path / "a", {digest})
        pieces = iter([BIG[: blobs.PIECE_BYTES]])

        async def one_piece(caller: bytes, body: bytes) -> bytes:
            return next(pieces)

        dying.serve(blobs.PROTO, one_piece)
        await blobs.fetch_file(taker, [dying.id, good.id], digest, tmp_path / "b", 5.0)
        assert good.counts["sent_bytes"] < len(BIG)  # it gave only what was missing

    asyncio.run(story())
    assert (tmp_path / "b" / f"{digest.hex()}.jsonl").read_bytes() == BIG


def test_a_lying_peer_and_an_endless_one_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = stored(tmp_path / "a", b"right")
    monkeypatch.setattr(blobs, "MAX_BYTES", 4 * blobs.PIECE_BYTES)

    async def story() -> None:
        good, liar, endless, taker = await network_of(4)
        blobs.serve_files(good, tmp_path / "a", {digest})

        async def lie(caller: bytes, body: bytes) -> bytes:
            return b"wrong"

        async def flow(caller: bytes, body: bytes) -> bytes:
            return bytes(blobs.PIECE_BYTES)

        liar.serve(blobs.PROTO, lie)
        endless.serve(blobs.PROTO, flow)
        with pytest.raises(TaskError, match="gave another file"):
            await blobs.fetch_file(taker, [liar.id], digest, tmp_path / "b", 5.0)
        with pytest.raises(TaskError, match="sends more than"):
            await blobs.fetch_file(taker, [endless.id], digest, tmp_path / "b", 5.0)
        assert not (tmp_path / "b").exists()
        await blobs.fetch_file(taker, [liar.id, good.id], digest, tmp_path / "b", 5.0)

    asyncio.run(story())


def test_a_file_that_is_not_shared_is_not_given(tmp_path: Path) -> None:
    digest = stored(tmp_path / "a", b"private")

    async def story() -> None:
        one, two = await network_of(2)
        blobs.serve_files(one, tmp_path / "a", set())
        with pytest.raises(NetworkError, match="not shared here"):
            await two.request(one.id, blobs.PROTO, blobs.encode(blobs.Piece(digest, 0)), timeout_s=1.0)
        with pytest.raises(TaskError, match="try again later"):
            await blobs.fetch_file(two, [one.id], digest, tmp_path / "b", 5.0)

    asyncio.run(story())
