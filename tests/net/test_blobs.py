"""A blob comes from several providers, each chunk checked; liars, the dead and the slow hold nobody up."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.net.test_contract import met, tick
from waggle.core.blob import CHUNK_BYTES, MAX_BLOB_BYTES, DiskBlobs, Manifest, MemoryBlobs, blob_id
from waggle.core.clock import FakeClock
from waggle.core.codec import VERSION, decode, digest_bytes, encode
from waggle.core.errors import NetworkError, RunError
from waggle.net import blobs
from waggle.net.blobs import PROTO, Ask, Contents, Fetched, Piece, fetch, serve_blobs
from waggle.net.memory import MemoryNetwork, MemoryTransport
from waggle.net.transport import Answer

NUM = 12
DATA = b"".join(bytes([number]) * CHUNK_BYTES for number in range(NUM - 1)) + b"the rest"
BLOB = blob_id(DATA)
TINY = b"a few bytes"
FULL = MemoryBlobs()
FULL.put(DATA)
FULL.put(TINY)


Change = Callable[[Contents | Piece, bytes], Awaitable[bytes]]


class Swarm:
    """A taker and its providers, on a network whose time passes with every turn of the loop."""

    def __init__(self, latency_s: float) -> None:
        self.clock = FakeClock()
        self.network = MemoryNetwork(0, self.clock, latency_s=latency_s)
        self.store = MemoryBlobs()
        self.nodes: list[MemoryTransport] = []

    async def providers(self, num: int) -> list[MemoryTransport]:
        """So many nodes that share the whole blob."""
        self.nodes = [self.network.attach(bytes([number]) * 32) for number in range(num + 1)]
        await met(self.nodes)
        for node in self.nodes[1:]:
            serve_blobs(node, FULL, {BLOB, blob_id(TINY)})
        return self.nodes[1:]

    async def fetch(self, blob: bytes = BLOB, timeout_s: float = 3600, max_bytes: int = MAX_BLOB_BYTES) -> Fetched:
        peers = [node.id for node in self.nodes]
        return await fetch(self.taker, peers, blob, self.store, self.clock, timeout_s=timeout_s, max_bytes=max_bytes)

    @property
    def taker(self) -> MemoryTransport:
        return self.nodes[0]

    def held(self) -> int:
        return sum(self.store.holds(BLOB, number) for number in range(NUM))

    async def until_received(self, num_chunks: int) -> None:
        while self.taker.counts["received_bytes"] < num_chunks * CHUNK_BYTES:
            await asyncio.sleep(0)


def play(story: Callable[[Swarm], Awaitable[None]], latency_s: float = 0.05, turn_s: float = 0.02) -> None:
    async def run() -> None:
        swarm = Swarm(latency_s)
        ticking = asyncio.create_task(tick(swarm.clock, turn_s))
        await story(swarm)
        ticking.cancel()
        await swarm.network.close()

    asyncio.run(run())


def through(node: MemoryTransport, change: Change) -> None:
    """Let a provider say something else than what is right."""
    honest: Answer = node._answers[PROTO]

    async def answer(caller: bytes, body: bytes) -> bytes:
        return await change(decode(Ask, body).what, await honest(caller, body))

    node.serve(PROTO, answer)


def slow_down(swarm: Swarm, node: MemoryTransport, bytes_per_s: float) -> None:
    """Give a provider a line on which one answer goes after the other."""
    line = asyncio.Lock()

    async def slowly(what: Contents | Piece, reply: bytes) -> bytes:
        async with line:
            await swarm.clock.sleep(len(reply) / bytes_per_s)
        return reply

    through(node, slowly)


async def wrong_bytes(what: Contents | Piece, reply: bytes) -> bytes:
    return reply if isinstance(what, Contents) else bytes(len(reply) - 1) + b"!"


async def too_few(what: Contents | Piece, reply: bytes) -> bytes:
    return reply if isinstance(what, Contents) else reply[:-1]


async def another_manifest(what: Contents | Piece, reply: bytes) -> bytes:
    return encode(Manifest(1, (bytes(32),))) if isinstance(what, Contents) else reply


async def junk(what: Contents | Piece, reply: bytes) -> bytes:
    return b"junk"


async def nothing(what: Contents | Piece, reply: bytes) -> bytes:
    return reply if isinstance(what, Contents) or await asyncio.Event().wait() else b""


def test_a_blob_comes_from_all_providers() -> None:
    async def story(swarm: Swarm) -> None:
        providers = await swarm.providers(3)
        fetched = await swarm.fetch()
        assert swarm.store.read(BLOB, 0, len(DATA)) == DATA
        assert fetched.bytes_from.keys() == {node.id for node in providers}
        assert sum(fetched.bytes_from.values()) == len(DATA)
        assert (fetched.lied, fetched.failed, fetched.num_resumed) == ((), (), 0)
        assert swarm.taker.counts["received_bytes"] < len(DATA) + 20_000  # nothing came twice but the manifest
        assert await swarm.fetch() == Fetched({}, (), (), NUM)

    play(story)


@pytest.mark.parametrize("lie", [wrong_bytes, too_few, another_manifest, junk])
def test_a_liar_is_dropped_at_once_and_one_who_dies_midway_is_done_without(
    lie: Change,
) -> None:
    async def story(swarm: Swarm) -> None:
        liar, dying, good = await swarm.providers(3)
        through(liar, lie)
        for node in (dying, good):
            slow_down(swarm, node, 500_000)
        fetching = asyncio.create_task(swarm.fetch())
        await swarm.until_received(6)
        swarm.network.kill(dying.id)
        fetched = await fetching
        assert swarm.store.read(BLOB, 0, len(DATA)) == DATA
        assert fetched.lied == (liar.id,)
        assert set(fetched.failed) <= {dying.id}  # all may have come from the other before it was given up
        assert fetched.bytes_from.keys() == {dying.id, good.id}
        assert swarm.taker.counts["blob-lied"] == 1
        assert liar.counts["sent_bytes"] < CHUNK_BYTES + 1000

    play(story)


def test_a_fetch_that_was_stopped_goes_on_in_a_new_process(tmp_path: Path) -> None:
    async def story(swarm: Swarm) -> None:
        for node in await swarm.providers(3):
            slow_down(swarm, node, 500_000)
        swarm.store = DiskBlobs(tmp_path)
        fetching = asyncio.create_task(swarm.fetch())
        await swarm.until_received(6)
        fetching.cancel()
        with suppress(asyncio.CancelledError):
            await fetching
        swarm.store = DiskBlobs(tmp_path)
        held, before = swarm.held(), swarm.taker.counts["received_bytes"]
        assert 2 <= held < NUM
        fetched = await swarm.fetch()
        assert fetched.num_resumed == held
        given_bytes = sum(fetched.bytes_from.values())
        assert given_bytes in (len(DATA) - held * CHUNK_BYTES, (NUM - held) * CHUNK_BYTES)  # the last one is short
        assert swarm.taker.counts["received_bytes"] - before == given_bytes
        assert (tmp_path / BLOB.hex()).read_bytes() == DATA

    play(story)


def test_where_nobody_is_left_it_is_said_what_is_missing_and_why() -> None:
    async def story(swarm: Swarm) -> None:
        liar, dying = await swarm.providers(2)
        through(liar, wrong_bytes)
        slow_down(swarm, dying, 500_000)
        fetching = asyncio.create_task(swarm.fetch())
        await swarm.until_received(7)
        swarm.network.kill(dying.id)
        said = rf"the blob {BLOB.hex()[:12]} could not be fetched, \d+ of 12 chunks are missing: nobody is left .*"
        with pytest.raises(NetworkError, match=said + r"\(last: .* cannot be reached .*try again later"):
            await fetching
        assert swarm.taker.counts["blob-failed"] == 1
        held = swarm.held()
        swarm.network.go_online(dying)
        assert (await swarm.fetch()).num_resumed == held > 0

    play(story)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (another_manifest, "its manifest is missing: nobody is left .*gave another manifest"),
        (wrong_bytes, "12 of 12 chunks are missing: nobody is left .*gave a wrong chunk"),
        (too_few, "12 of 12 chunks are missing: nobody is left .*gave 16383 bytes for 16384"),
        (nothing, "12 of 12 chunks are missing: nobody is left .*no answer within 60 s"),
    ],
)
def test_the_last_reason_is_named(answer: Change, said: str) -> None:
    async def story(swarm: Swarm) -> None:
        for node in await swarm.providers(4):
            through(node, answer)
        with pytest.raises(NetworkError, match="its manifest is missing: nobody is left who could give it;"):
            await fetch(swarm.taker, [swarm.taker.id], BLOB, swarm.store, swarm.clock, timeout_s=9)
        with pytest.raises(NetworkError, match=said):
            await swarm.fetch()

    play(story, turn_s=0.5)


def test_one_that_fails_now_and_then_rests_and_goes_on_where_it_was() -> None:
    async def story(swarm: Swarm) -> None:
        (weak,) = await swarm.providers(1)
        num_asked = 0

        async def weakly(what: Contents | Piece, reply: bytes) -> bytes:
            nonlocal num_asked
            num_asked += 1
            if num_asked % 7 in (0, 1):
                raise ValueError("not now")
            return reply

        through(weak, weakly)
        fetched = await swarm.fetch()
        assert fetched == Fetched({weak.id: len(DATA)}, (), (), 0)
        assert weak.counts["sent_bytes"] < len(DATA) + 1000  # no piece twice

    play(story, turn_s=0.5)


def test_a_slow_provider_holds_nobody_up() -> None:
    async def story(swarm: Swarm) -> None:
        slow, stuck, good = await swarm.providers(3)
        slow_down(swarm, slow, 8000)
        through(stuck, nothing)
        began_s = swarm.clock.now_s()
        fetched = await swarm.fetch()
        assert swarm.clock.now_s() - began_s < 1.5 * blobs.LATE_S
        assert fetched.bytes_from == {good.id: len(DATA)}

    play(story)


def test_at_64_kbit_a_second_and_a_high_latency_a_blob_comes_at_that_rate() -> None:
    async def story(swarm: Swarm) -> None:
        (slow,) = await swarm.providers(1)
        slow_down(swarm, slow, 8000)
        began_s = swarm.clock.now_s()
        fetched = await swarm.fetch(timeout_s=7200)
        assert fetched.bytes_from == {slow.id: len(DATA)}
        assert len(DATA) / (swarm.clock.now_s() - began_s) > 0.75 * 8000

    play(story, latency_s=0.6, turn_s=0.1)


def test_a_fast_provider_is_kept_busy_whatever_its_latency() -> None:
    async def story(swarm: Swarm) -> None:
        await swarm.providers(1)
        began_s = swarm.clock.now_s()
        await swarm.fetch()
        assert swarm.clock.now_s() - began_s < 15 * 2.4  # round trips for twelve chunks, the first of them in pieces

    play(story, latency_s=1.2, turn_s=0.1)


def test_the_whole_has_a_deadline_and_what_came_is_kept() -> None:
    async def story(swarm: Swarm) -> None:
        slow_down(swarm, *await swarm.providers(1), 80_000)
        with pytest.raises(NetworkError, match=r"of 12 chunks are missing: no answer within 60 s .*all of it"):
            await swarm.fetch(timeout_s=60)
        assert 2 <= swarm.held() < NUM

    play(story, turn_s=0.1)


def test_more_providers_than_are_asked_at_a_time_take_the_places_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PROVIDERS", 2)

    async def story(swarm: Swarm) -> None:
        providers = await swarm.providers(5)
        for node in providers[:3]:
            through(node, wrong_bytes)
        fetched = await swarm.fetch()
        assert fetched.lied == tuple(node.id for node in providers[:3])
        assert fetched.bytes_from.keys() == {node.id for node in providers[3:]}

    play(story)


def test_what_is_larger_than_wanted_is_not_fetched() -> None:
    async def story(swarm: Swarm) -> None:
        await swarm.providers(1)
        with pytest.raises(NetworkError, match=f"12 of 12 .*it has {len(DATA)} bytes; at most 1000 are accepted"):
            await swarm.fetch(max_bytes=1000)
        assert (await swarm.fetch(blob_id(TINY), max_bytes=1000)).bytes_from
        assert swarm.store.read(blob_id(TINY), 0, len(TINY)) == TINY

    play(story)


@pytest.mark.parametrize(
    "fields",
    [(2**62, (bytes(32),)), (MAX_BLOB_BYTES + 1, (bytes(32),) * 4097), (CHUNK_BYTES, (bytes(32),) * 2), (1, (b"x",))],
)
def test_a_hostile_manifest_is_refused_though_it_hashes_right(fields: tuple[object, ...]) -> None:
    data = bytes((VERSION,)) + msgspec.msgpack.encode(fields)

    async def story(swarm: Swarm) -> None:
        (enemy,) = await swarm.providers(1)

        async def answer(caller: bytes, body: bytes) -> bytes:
            return data

        enemy.serve(PROTO, answer)
        with pytest.raises(NetworkError, match=r"its manifest is missing: nobody is left .*gave another"):
            await swarm.fetch(digest_bytes("Manifest", data))

    play(story)


def test_an_endless_answer_is_cut_off_and_costs_its_giver() -> None:
    async def story(swarm: Swarm) -> None:
        endless, good = await swarm.providers(2)

        async def flow(what: Contents | Piece, reply: bytes) -> bytes:
            return bytes(4 << 20)

        through(endless, flow)
        fetched = await swarm.fetch()
        assert fetched.bytes_from == {good.id: len(DATA)}
        assert endless.counts["sent_bytes"] <= blobs.MAX_FAILURES * (4 << 20)

    play(story)


def test_nothing_is_given_that_is_not_shared_and_whole() -> None:
    async def story(swarm: Swarm) -> None:
        (giver,) = await swarm.providers(1)
        private, part = swarm.store.put(b"private"), blob_id(DATA)
        swarm.store.begin(FULL.manifest(BLOB) or Manifest(0, ()))
        shared = {part}
        serve_blobs(giver, swarm.store, shared)

        async def ask(what: Contents | Piece) -> bytes:
            return await swarm.taker.request(giver.id, PROTO, encode(Ask(what)), timeout_s=9)

        for blob in (private, part, bytes(32)):
            for what in (Contents(blob), Piece(blob, 0, 1)):
                with pytest.raises(NetworkError, match=f"the blob {blob.hex()[:12]} is not shared here"):
                    await ask(what)
        shared.add(private)
        assert await ask(Piece(private, 3, 4)) == b"vate"
        with pytest.raises(NetworkError, match="cannot be read here"):
            await ask(Piece(private, 3, 5))
        for body in (b"", b"junk", encode(Ask(Piece(private, 0, 1)))[:-1], bytes(300)):
            with pytest.raises(NetworkError, match="failed to answer"):
                await swarm.taker.request(giver.id, PROTO, body, timeout_s=9)

    play(story)


def test_a_damaged_file_gives_no_path_away(tmp_path: Path) -> None:
    store = DiskBlobs(tmp_path)
    store.put(TINY)

    async def story(swarm: Swarm) -> None:
        (giver,) = await swarm.providers(1)
        serve_blobs(giver, store, {blob_id(TINY)})
        store.path(blob_id(TINY)).write_bytes(b"")
        with pytest.raises(NetworkError, match="cannot be read here") as caught:
            await swarm.fetch(blob_id(TINY))
        store.path(blob_id(TINY)).with_name(f"{blob_id(TINY).hex()}.manifest").unlink()
        swarm.store = MemoryBlobs()
        with pytest.raises(NetworkError, match="cannot be read here") as also:
            await swarm.fetch(blob_id(TINY))
        assert str(tmp_path) not in f"{caught.value} {also.value}"

    play(story)


def test_a_disk_that_refuses_ends_the_fetch_and_nothing_is_left_running(tmp_path: Path) -> None:
    async def story(swarm: Swarm) -> None:
        await swarm.providers(3)
        swarm.store = DiskBlobs(tmp_path)
        (tmp_path / f"{BLOB.hex()}.part").mkdir()
        running = asyncio.all_tasks()
        with pytest.raises(RunError, match=r"cannot write .*\.part"):
            await swarm.fetch()
        assert asyncio.all_tasks() == running

    play(story)
