"""Whatever a peer sends: the node lives, its neighbours stay, and who sent it is gone for a counted reason or harmless.

The same on real connections, with what it costs, is `benchmarks/hostile_wire.py`.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.hostile_eve import EDITS, mutate, samples
from tests.net.overlays import EVE, TOPIC, World
from tests.net.overlays import play as tell
from tests.node import crafted
from tests.node.parts import config
from tests.swarm.hostile import packed, plain
from waggle.core.clock import FakeClock
from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError, NetworkError
from waggle.core.events import NoEvents
from waggle.core.keys import Key
from waggle.core.sealing import announce
from waggle.core.types import Announcement
from waggle.net import frames
from waggle.net.book import MAX_RECORDS, Book, Record, signed
from waggle.net.frames import Bye, Have, Hello, Known, Ping, Push, Request, Want, Welcome
from waggle.net.memory import MemoryNetwork
from waggle.net.overlay import SILENT_S, OverlayTransport
from waggle.net.pace import Pace
from waggle.net.terms import Terms
from waggle.net.transport import Ruling, message_id
from waggle.net.wire import Link, Rude
from waggle.node.exchange import Exchange
from waggle.node.node import Node
from waggle.node.round import play

T = TypeVar("T")
EDIT = st.tuples(st.integers(0, EDITS - 1), st.integers(0, 1 << 16), st.integers(0, (1 << 32) - 1))
ZERO = bytes(32)
GOOD = samples(EVE, ZERO, 1_700_000_000_000)
"""A frame of every kind."""
QUIET = {"sent", "received", "sent_bytes", "received_bytes"}


def refusals(node: OverlayTransport) -> int:
    """All that a node has refused or cut off so far, whatever the reason."""
    return sum(num for name, num in (node.counts + node.book.counts).items() if name not in QUIET)


class Siege:
    """Two nodes that are each other's neighbours for a whole test, and Eve, who comes again and again."""

    def __init__(self) -> None:
        self.loop, self.world = asyncio.new_event_loop(), World()
        self.errors: list[object] = []
        self.count = 0
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.nodes = self.play(self.world.add(2))
        self.victim, self.honest = self.nodes

    def play(self, story: Awaitable[T]) -> T:
        async def run() -> T:
            return await story

        return self.loop.run_until_complete(run())

    async def send(self, data: bytes) -> bool:
        """A frame of Eve's, as a neighbour under a new name. Whether she still is one then."""
        self.count += 1
        key = Key.from_seed(message_id(b"eve", b"%d" % self.count))
        link, welcome = await self.world.hello(self.victim, key)
        assert welcome.version
        await self.world.pass_s(0.04)
        await link.send([data])
        await self.world.pass_s(0.1)
        stays = key.id in self.victim.peers()
        await self.world.wires.open[key.id].close()
        await self.world.pass_s(0.04)
        return stays

    def holds(self) -> None:
        """Nothing broke, and the honest still hear each other."""
        assert self.errors == []
        assert (self.victim.peers(), self.honest.peers()) == ([self.honest.id], [self.victim.id])
        self.world.heard()
        self.play(self.honest.publish(TOPIC, b"%d" % self.count))
        self.play(self.world.pass_s(0.1))
        assert self.world.heard()[0] == 1


@pytest.fixture(scope="module")
def siege() -> Iterator[Siege]:
    made = Siege()
    yield made
    made.play(made.world.pass_s(1))
    for task in asyncio.all_tasks(made.loop):
        task.cancel()
    made.play(asyncio.sleep(0))
    made.loop.close()


def test_samples_are_frames_of_every_kind() -> None:
    said = [type(frames.read(data)) for data in GOOD]
    assert said == [Hello, Welcome, Push, Have, Want, Known, Ping, Bye]


@given(st.integers(0, len(GOOD) - 1), st.integers(0, len(GOOD) - 1), st.lists(EDIT, min_size=1, max_size=3))
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
def test_a_mutated_frame_costs_its_sender_alone(
    siege: Siege, kind: int, other: int, edits: list[tuple[int, int, int]]
) -> None:
    data = GOOD[kind]
    for edit in edits:
        data = mutate(data, GOOD[other], *edit)
    before = refusals(siege.victim)
    stays = siege.play(siege.send(data))
    siege.holds()
    if stays:
        frames.read(data)  # it was one
    elif not isinstance(_said(data), Bye):
        assert refusals(siege.victim) > before, "cut off without a counted reason"


def _said(data: bytes) -> object:
    with contextlib.suppress(NetworkError):
        return frames.read(data)
    return None


@given(st.binary(max_size=200) | st.lists(EDIT, max_size=3).map(lambda edits: _request(edits)))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_whatever_is_asked_is_answered_or_refused(siege: Siege, body: bytes) -> None:
    try:
        assert siege.play(siege.victim._requests.answer(EVE.id, body)).fine is False
    except Rude:
        with pytest.raises(DecodeError):
            decode(Request, body)
    assert siege.errors == []


def _request(edits: list[tuple[int, int, int]]) -> bytes:
    data = encode(Request("waggle/none/1", b"a body"))
    for edit in edits:
        data = mutate(data, data, *edit)
    return data


async def _flood(link: Link, data: bytes, num: int) -> None:
    with contextlib.suppress(NetworkError):  # the link ends under it
        for _ in range(num):
            await link.send([data] * 100)


CUTS: dict[str, Callable[[Link], Awaitable[None]]] = {
    "no frame": lambda link: link.send([b"junk"]),
    "an empty frame": lambda link: link.send([b""]),
    "a frame out of place": lambda link: link.send([GOOD[0]]),
    "a large message unasked": lambda link: link.send([frames.write(Push(TOPIC, bytes(5000)))]),
    "a flood of pings": lambda link: _flood(link, frames.write(Ping()), 30),
    "a flood of wants": lambda link: _flood(link, frames.write(Want((ZERO,))), 30),
}


@pytest.mark.parametrize("name", CUTS)
def test_whoever_is_cut_off_is_counted_once_and_by_a_reason(name: str) -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        link, _ = await world.hello(nodes[0])
        await world.pass_s(0.1)
        before = refusals(nodes[0])
        await CUTS[name](link)
        await world.pass_s(0.5)
        assert nodes[0].peers() == [nodes[1].id]
        assert refusals(nodes[0]) == before + 1

    tell(story)


def test_who_is_silent_is_cut_off_and_counted() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        await world.hello(nodes[0])
        await world.pass_s(SILENT_S + 1)
        assert nodes[0].peers() == [nodes[1].id]
        assert nodes[0].counts["silent"] == 1

    tell(story)


def test_haves_of_what_nobody_has_cost_no_honest_neighbour() -> None:
    async def story(world: World) -> None:
        victim, honest = await world.add(2)
        link, _ = await world.hello(victim)
        world.wires.latency_s = 0.1
        await honest.publish(TOPIC, b"x" * 5000)
        for number in range(11):
            names = [message_id(TOPIC, b"%d %d" % (number, i)) for i in range(64 * 17)]
            haves = [frames.write(Have(tuple(names[at : at + 64]))) for at in range(0, len(names), 64)]
            sending = asyncio.create_task(link.send(haves))
            await world.pass_s(0.12)
            await sending
        await world.pass_s(1)
        assert world.heard() == [1, 0]
        assert honest.id in victim.peers()

    tell(story)


def test_a_refused_message_that_comes_twice_costs_no_honest_neighbour() -> None:
    """Both were asked, since the first was slow; what is refused is not known afterwards."""

    async def story(world: World) -> None:
        victim, honest = await world.add(2)
        victim.subscribe(TOPIC, lambda sender, data: Ruling.REJECT)
        link, _ = await world.hello(victim)
        push = Push(TOPIC, bytes(5000))
        name = message_id(TOPIC, push.data)
        spread = victim._spread
        assert [said for _, said in spread.hear(honest.id, [name])] == [Want((name,))]
        assert not list(spread.hear(EVE.id, [name]))
        await world.pass_s(5)  # honest is slow: Eve is asked, and answers first
        assert spread._wanted[name].asked == EVE.id
        assert not list(spread.receive(EVE.id, push, []))
        assert not list(spread.receive(honest.id, push, []))
        link.close("well")

    tell(story)


def test_names_of_what_is_not_here_do_not_make_a_node_give_again() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        link, _ = await world.hello(node)
        data = [bytes([number]) * 50_000 for number in range(10)]
        for one in data:
            await node.publish(TOPIC, one)
        await world.pass_s(1)
        before = world.wire(node).sent_bytes
        here = frames.write(Want(tuple(message_id(TOPIC, one) for one in data)))
        for number in range(4):
            others = [message_id(b"other", b"%d %d" % (number, i)) for i in range(64 * 20)]
            wants = [frames.write(Want(tuple(others[at : at + 64]))) for at in range(0, len(others), 64)]
            await link.send([here, here, *wants])
            await world.pass_s(7)
        assert world.wire(node).sent_bytes - before < 2.2 * sum(map(len, data))

    tell(story)


def test_visitors_do_not_make_a_node_forget_its_neighbours_addresses() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(8)
        victim, honest = nodes[0], {node.id for node in nodes[1:]}
        now_ms = int(world.clock.now_s() * 1000)
        for visit in range(12):
            link, _ = await world.hello(victim, Key.from_seed(bytes([visit, 7]) * 16))
            records = [_fake(f"{visit} {number}", now_ms) for number in range(72)]
            told = [Known(tuple(records[at : at + 8])) for at in range(0, 64, 8)]
            await link.send([frames.write(said) for said in (*told, Bye(tuple(records[64:])))])
            await world.pass_s(0.1)
        assert honest <= {*victim.book._records}
        assert honest <= {*victim.peers()}

    tell(story)


def _fake(name: str, now_ms: int) -> Record:
    return signed(Key.from_seed(message_id(b"fake", name.encode())), "192.0.2.1:9", now_ms)


def after_a_round(says: Callable[[Node, Exchange], Awaitable[object]]) -> dict[str, int]:
    """What a node has refused after a round in which Eve was its neighbour."""

    async def story() -> dict[str, int]:
        swarm = crafted.Swarm(1)
        node = swarm.nodes[0]
        await node.start()
        await says(node, await swarm.eve())
        await play(node)
        await play(node)  # and goes on
        return dict(json.loads(swarm.archives[0].records[0].metrics)["refused"])

    return asyncio.run(story())


def news_of(node: Node, texts: Sequence[str] = ("7", "8")) -> Announcement:
    task = crafted.drawn(node, EVE, crafted.is_train(node))
    return announce(node.taskset.digest, crafted.sealed(node, [crafted.body(task, texts)]))


NEWS: dict[str, tuple[str, Callable[[list[Any]], list[Any]]]] = {
    "a missing field": ("schema", lambda raw: raw[1:]),
    "a field left to its default": ("not-canonical", lambda raw: raw[:-1]),
    "one field more": ("schema", lambda raw: [*raw, 0]),
    "a wrong type": ("schema", lambda raw: [*raw[:2], "one", *raw[3:]]),
    "of another swarm": ("other-charter", lambda raw: [raw[0], ZERO, *raw[2:]]),
    "of yesterday": ("stale", lambda raw: [*raw[:3], raw[3] - 10**8, *raw[4:]]),
    "of tomorrow": ("future", lambda raw: [*raw[:3], raw[3] + 10**8, *raw[4:]]),
    "of somebody else": ("signature", lambda raw: [b"h" * 32, *raw[1:]]),
    "with a line twice": ("duplicate", lambda raw: [*raw[:4], raw[4] * 2, *raw[5:]]),
    "unsigned": ("signature", lambda raw: [*raw[:5], bytes(64)]),
}


@pytest.mark.parametrize("name", NEWS)
def test_a_flawed_announcement_is_refused_and_nobody_stops(name: str) -> None:
    reason, change = NEWS[name]

    async def says(node: Node, eve: Exchange) -> None:
        await eve.transport.publish(node.taskset.digest, packed(change(plain(news_of(node)))))

    assert after_a_round(says) == {reason: 1}


@pytest.mark.parametrize(("size", "reason"), [(1, "group-size"), (2, ""), (65, "group-size")])
def test_a_group_of_another_size_is_refused_and_nobody_stops(size: int, reason: str) -> None:
    async def says(node: Node, eve: Exchange) -> None:
        task = crafted.drawn(node, EVE, crafted.is_train(node))
        await eve.offer(1, crafted.sealed(node, [crafted.body(task, [str(n) for n in range(size)])]))

    assert after_a_round(says) == ({reason: 1} if reason else {})


def test_a_long_list_that_nobody_signed_is_refused_once_and_nobody_stops() -> None:
    async def says(node: Node, eve: Exchange) -> None:
        news = news_of(node)
        entries = [replace(news.entries[0], id=message_id(b"group", b"%d" % number)) for number in range(200)]
        for number in range(5):
            told = replace(news, entries=tuple(entries), created_ms=news.created_ms + number)
            await eve.transport.publish(node.taskset.digest, encode(told))

    assert 1 <= after_a_round(says)["signature"] <= 5


def test_neighbours_who_say_all_they_may_push_nobody_out() -> None:
    async def story() -> list[bytes]:
        transport = MemoryNetwork(0, FakeClock()).attach(ZERO)
        exchange = Exchange(transport, TOPIC, config().share, NoEvents(), FakeClock())
        for peer in range(Terms().most):
            for number in range(300 if peer else 1):
                transport.receive(bytes([peer]) * 32, TOPIC, b"%d %d" % (peer, number), b"%d %d" % (peer, number))
        return [data for _, data in await exchange.hear()]

    assert b"0 0" in asyncio.run(story())


def test_records_with_a_flaw_are_refused_by_reason() -> None:
    clock = FakeClock()
    now_ms, me = int(clock.now_s() * 1000), Key.from_seed(ZERO)
    book, rng = Book(me.id), World().make(1)._rng
    good = signed(EVE, "192.0.2.1:9", now_ms)
    flawed = [
        signed(Key.from_seed(b"1" * 32), "192.0.2.1:9", now_ms - 90_000_000),
        signed(Key.from_seed(b"2" * 32), "192.0.2.1:9", now_ms + 900_000),
        replace(signed(Key.from_seed(b"3" * 32), "192.0.2.1:9", now_ms), address="192.0.2.2:9"),
        replace(good, peer=b"4" * 32),
        signed(EVE, "192.0.2.2:9", now_ms),
    ]
    assert book.add(good, now_ms, rng)
    assert not any(book.add(one, now_ms, rng) for one in (*flawed, replace(good, peer=me.id)))
    assert book.counts == {"expired": 1, "future": 1, "signature": 2, "two-stories": 1}
    assert [*book._records] == [EVE.id]
    for number in range(MAX_RECORDS + 50):
        book.add(_fake(f"crowd {number}", now_ms), now_ms, rng)
    assert len(book) == MAX_RECORDS


def test_answers_under_way_hold_no_ping_up() -> None:
    async def story() -> float:  # a node whose line is full would fall silent, and lose its neighbours
        clock = FakeClock()
        pace = Pace(clock, 100_000)
        answers = [asyncio.create_task(pace.send(pace.piece_bytes)) for _ in range(32)]
        await asyncio.sleep(0)
        started_s, ping = clock.now_s(), asyncio.create_task(pace.send(20))
        while not ping.done():
            await asyncio.sleep(0)
            clock.advance(0.1)
        for answer in answers:
            answer.cancel()
        return clock.now_s() - started_s

    assert asyncio.run(story()) < SILENT_S / 4
