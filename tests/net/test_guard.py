"""What strangers may cost: connections and requests of a host, and peers that were dropped for what they did."""

import asyncio

import pytest

from tests.net.overlays import EVE, World, play
from tests.net.test_hostile_wire import refusals
from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.types import Peer
from waggle.net import guard as module
from waggle.net.guard import KNOCKS_AT_ONCE, KNOCKS_PER_S, OUT_S, REQUESTS_AT_ONCE, REQUESTS_PER_S, Guard
from waggle.net.wire import Link

HOST = "192.0.2.7"


def knocks(guard: Guard, host: str = HOST, most: int = 1000) -> int:
    """How many connections from a host are let in now."""
    return sum(guard.lets_in(host) for _ in range(most))


def test_a_host_may_knock_in_a_burst_and_then_now_and_again() -> None:
    clock = FakeClock()
    guard = Guard(clock)
    assert knocks(guard) == KNOCKS_AT_ONCE
    assert knocks(guard, "192.0.2.8") == KNOCKS_AT_ONCE  # another's allowance is its own
    clock.advance(10)
    assert knocks(guard) == 10 * KNOCKS_PER_S
    assert guard.counts["too-many-knocks"] == 3 * 1000 - 2 * KNOCKS_AT_ONCE - 10 * KNOCKS_PER_S


def test_all_hosts_together_have_an_allowance() -> None:
    clock = FakeClock()
    guard = Guard(clock)
    assert sum(guard.lets_in(f"host {number}") for number in range(1000)) == module.ALL_KNOCKS_AT_ONCE
    clock.advance(10)
    assert sum(guard.lets_in(f"other {number}") for number in range(1000)) == 10 * module.ALL_KNOCKS_PER_S


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[2001:db8::1]", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("fe80::1%eth0", "[fe80::2%eth1]", True),
        ("https://relay.example", "https://relay.example", True),
        ("https://relay.example", "https://other.example", False),
    ],
)
def test_what_counts_as_one_host(one: str, other: str, same: bool) -> None:
    guard = Guard(FakeClock())
    knocks(guard, one)
    assert guard.lets_in(other) is not same


def test_a_host_proves_its_address_before_half_of_its_allowance_is_used_up_in_its_name() -> None:
    guard = Guard(FakeClock())
    assert guard.trusts(HOST)
    knocks(guard, most=int(KNOCKS_AT_ONCE / 2))
    assert not guard.trusts(HOST)
    assert guard.lets_in(HOST)


def test_who_was_dropped_is_kept_out_longer_each_time_and_uses_up_its_hosts_allowance() -> None:
    clock = FakeClock()
    guard = Guard(clock)
    assert guard.keeps_out(EVE.id, HOST) == 0
    guard.blame(EVE.id, HOST, "flood")
    assert guard.keeps_out(EVE.id, "elsewhere") == OUT_S
    assert guard.counts == {"flood": 1, "kept-out": 1}
    assert knocks(guard) == KNOCKS_AT_ONCE - module.RUDE_KNOCKS
    clock.advance(OUT_S)
    assert guard.keeps_out(EVE.id, HOST) == 0
    guard.blame(EVE.id, HOST, "flood")
    assert guard.keeps_out(EVE.id, "elsewhere") == 2 * OUT_S
    for _ in range(20):
        guard.blame(EVE.id, HOST, "flood")
    assert guard.keeps_out(EVE.id, "elsewhere") == module.MAX_OUT_S
    clock.advance((module.MOST_KNOCKS + 1) / KNOCKS_PER_S)
    assert guard.lets_in(HOST), "a host waits for a minute at most, whatever its peers did"


def test_requests_of_a_host_wait_for_their_turn() -> None:
    clock = FakeClock()
    guard = Guard(clock)
    assert {guard.request_wait_s(HOST) for _ in range(int(REQUESTS_AT_ONCE))} == {0.0}
    assert [guard.request_wait_s(HOST) * REQUESTS_PER_S for _ in range(3)] == pytest.approx([1, 2, 3])
    clock.advance(1)
    assert guard.request_wait_s(HOST) == 0


def test_what_is_known_of_hosts_and_peers_is_bounded() -> None:
    guard = Guard(FakeClock())
    for number in range(2000):
        guard.blame(number.to_bytes(32, "big"), f"host {number}", "flood")
    assert len(guard._hosts) == len(guard._out) == 1024
    assert guard.keeps_out((1999).to_bytes(32, "big"), "host 1999")


def test_who_floods_is_not_taken_in_again_for_a_while() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        link, _ = await world.hello(node)
        await link.send([b"junk"])
        await world.pass_s(0.5)
        assert node.counts["no-frame"] == 1
        with pytest.raises(NetworkError, match="lets nobody in from there for a while"):
            await world.wires.wire(EVE.id).dial(Peer(node.id, "memory"))
        await world.hello(node, Key.from_seed(b"f" * 32))  # others are welcome
        await world.pass_s(OUT_S)
        await world.hello(node)

    play(story)


def test_a_crowd_that_says_nothing_is_cut_off_and_counted() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(2)
        for number in range(50):
            wire, _ = await world.eve(Key.from_seed(bytes([number, 9]) * 16))
            await wire.dial(Peer(nodes[0].id, "memory"))
        await world.pass_s(0.5)
        assert nodes[0].peers() == [nodes[1].id]
        assert refusals(nodes[0]) == 50 - 32

    play(story)


def test_requests_beyond_what_a_host_may_owe_do_not_count() -> None:
    guard = Guard(FakeClock())
    waits = [guard.request_wait_s(HOST) for _ in range(1000)]
    assert max(waits) == module.MAX_DEBT_S
    assert waits.count(-1.0) == 1000 - REQUESTS_AT_ONCE - module.MAX_DEBT_S * REQUESTS_PER_S


def test_who_was_good_for_long_is_forgiven() -> None:
    clock = FakeClock()
    guard = Guard(clock)
    for _ in range(5):
        guard.blame(EVE.id, HOST, "flood")
    clock.advance(3 * module.MAX_OUT_S)
    guard.blame(EVE.id, HOST, "flood")
    assert guard.out_s(EVE.id) == OUT_S


def test_spoofed_hosts_do_not_use_up_what_all_have() -> None:
    guard = Guard(FakeClock())
    proven = [guard.trusts(f"host {number}") for number in range(100) if guard.lets_in(f"host {number}")]
    assert proven.count(True) <= module.ALL_KNOCKS_AT_ONCE / 2


def test_who_was_rude_is_not_dialled_either() -> None:
    async def story(world: World) -> None:
        (node,) = await world.add(1)
        link, _ = await world.hello(node)
        await world.pass_s(6)  # no new neighbour any more
        assert node.peers() == [EVE.id]
        await link.send([b"junk"])
        dialled: list[bytes] = []
        wire, dial = world.wire(node), world.wire(node).dial

        async def noted(peer: Peer) -> Link:
            dialled.append(peer.id)
            return await dial(peer)

        wire.dial = noted  # type: ignore[method-assign,assignment]
        await world.pass_s(OUT_S / 2)
        assert (node.peers(), dialled) == ([], [])
        await world.pass_s(OUT_S)
        assert EVE.id in dialled

    play(story)


def test_who_goes_offline_meets_nobody_meanwhile() -> None:
    async def story(world: World) -> None:
        nodes = await world.add(4)
        slow = nodes[0]._neighbours[nodes[1].id].link

        async def never(frames: object) -> None:
            await asyncio.Event().wait()

        slow.send = never  # type: ignore[method-assign,assignment]
        closing = asyncio.create_task(nodes[0].close())
        await world.pass_s(2)
        await closing
        assert all(not other._wire.guard.kept_out() for other in nodes[1:])
        assert all("no-frame" not in other.counts for other in nodes[1:])
        assert nodes[0].peers() == []
        await nodes[0].start()
        await nodes[0].join([Peer(nodes[1].id, "memory")])
        assert nodes[0].peers()

    play(story)
