"""Who is told of a message, who is asked for it, and when: the decisions alone, without links."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waggle.core.clock import FakeClock
from waggle.core.errors import NetworkError
from waggle.core.rng import rng_for
from waggle.net.frames import MAX_TOLD, Have, Push, Said, Want
from waggle.net.spread import AT_ONCE, LATE_S, WANT_S, WINDOW, Spread
from waggle.net.transport import Ruling, message_id

TOPIC = b"t" * 32
PEERS = [bytes([number]) * 32 for number in range(8)]
LARGE = b"x" * 5000


def made(ruling: Ruling = Ruling.FORWARD) -> tuple[Spread, FakeClock]:
    clock = FakeClock()
    spread = Spread(clock, Counter(), rng_for(0, "spread"))
    spread.subscribe(TOPIC, lambda sender, data: ruling)
    return spread, clock


def names(num: int) -> list[bytes]:
    return [message_id(TOPIC, b"%d" % number + LARGE) for number in range(num)]


def looks(spread: Spread) -> list[tuple[bytes, Said]]:
    """What many looks say."""
    return [send for _ in PEERS for send in spread.look(PEERS, ())]


def test_a_large_message_is_told_to_a_few_at_once_and_to_the_others_in_turns() -> None:
    spread, _ = made()
    first = list(spread.publish(TOPIC, LARGE, PEERS, to_all=True))
    assert len(first) == AT_ONCE
    assert {said for _, said in first} == {Have((message_id(TOPIC, LARGE),))}
    list(spread.hear(PEERS[7], [message_id(TOPIC, LARGE)]))  # has it from somebody else meanwhile
    later = looks(spread)
    told = [peer for peer, _ in (*first, *later)]
    assert len(told) == len(set(told))
    assert set(told) | {PEERS[7]} == set(PEERS)
    assert not looks(spread)


def test_one_neighbour_a_look_is_told_of_all_that_it_may_lack() -> None:
    spread, _ = made()
    for number in range(20):
        list(spread.publish(TOPIC, b"%d" % number + LARGE, PEERS, to_all=True))
    says = [list(spread.look(PEERS, ())) for _ in PEERS]
    assert [len(some) for some in says] == [1] * len(PEERS)
    assert {peer for some in says for peer, _ in some} == set(PEERS)
    assert sum(len(said.ids) for some in says for _, said in some) == 20 * (len(PEERS) - AT_ONCE)
    assert not looks(spread)


@pytest.mark.parametrize(("sources", "at_once"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_the_more_have_told_of_a_message_the_fewer_are_told_at_once(sources: int, at_once: int) -> None:
    spread, _ = made()
    for peer in PEERS[:sources]:
        list(spread.hear(peer, [message_id(TOPIC, LARGE)]))
    assert len(list(spread.receive(PEERS[0], Push(TOPIC, LARGE), PEERS))) == at_once


def test_a_message_for_a_few_is_told_to_them_alone() -> None:
    spread, _ = made()
    assert [peer for peer, _ in spread.publish(TOPIC, LARGE, PEERS[:5], to_all=False)] == PEERS[:5]
    assert not looks(spread)
    assert not list(spread.offers(PEERS[6]))


def test_who_told_of_a_message_is_not_told_of_it() -> None:
    spread, _ = made()
    name = message_id(TOPIC, LARGE)
    for peer in PEERS[:4]:
        list(spread.hear(peer, [name]))
    told = list(spread.receive(PEERS[0], Push(TOPIC, LARGE), PEERS)) + looks(spread)
    assert {peer for peer, _ in told} == set(PEERS[4:])


def test_a_neighbour_is_asked_for_a_few_at_a_time_and_for_the_next_as_they_come() -> None:
    spread, _ = made(Ruling.DELIVER)
    data = [b"%d" % number + LARGE for number in range(30)]
    asked = [want for _, want in spread.hear(PEERS[0], names(30))]
    assert asked == [Want(tuple(names(30)[:WINDOW]))]
    order = list(asked[0].ids)
    for number in range(30):
        (message,) = (d for d in data if message_id(TOPIC, d) == order[number])
        for peer, want in spread.receive(PEERS[0], Push(TOPIC, message), PEERS):
            assert (peer, len(want.ids)) == (PEERS[0], 1)
            order += want.ids
    assert sorted(order) == sorted(names(30))  # each once


def test_another_is_asked_where_nothing_comes_and_not_while_something_does() -> None:
    spread, clock = made()
    name = message_id(TOPIC, LARGE)
    assert list(spread.hear(PEERS[0], [name])) == [(PEERS[0], Want((name,)))]
    assert not list(spread.hear(PEERS[1], [name]))
    clock.advance(WANT_S + 1)
    assert not list(spread.look(PEERS, PEERS[:1]))  # it is on its way, slowly
    assert list(spread.look(PEERS, ())) == [(PEERS[1], Want((name,)))]
    clock.advance(LATE_S)
    assert list(spread.look(PEERS, PEERS)) == [(PEERS[0], Want((name,)))]  # whatever comes, it is not this
    assert list(spread.look(PEERS[1:], ())) == [(PEERS[1], Want((name,)))]  # the one who was asked is gone
    assert not list(spread.look([], ()))
    with pytest.raises(NetworkError, match="nobody asked for"):
        list(spread.receive(PEERS[1], Push(TOPIC, b"another" + LARGE), PEERS))


def test_a_new_neighbour_is_offered_everything_the_newest_first_in_few_frames() -> None:
    spread, _ = made()
    for number in range(100):
        list(spread.publish(TOPIC, b"%d" % number + LARGE, [], to_all=True))
    offered = [said for _, said in spread.offers(PEERS[0])]
    assert [len(have.ids) for have in offered] == [MAX_TOLD, 100 - MAX_TOLD]
    assert [name for have in offered for name in have.ids] == names(100)[::-1]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40), st.booleans()), max_size=200))
def test_nobody_is_asked_for_more_than_the_window(
    story: list[tuple[int, int, bool]],
) -> None:
    spread, clock = made(Ruling.DELIVER)
    waiting: dict[bytes, bytes] = {}  # message -> who was asked last
    for number, message, comes in story:
        data = b"%d" % message + LARGE
        name = message_id(TOPIC, data)
        if comes and name in waiting:
            sends = list(spread.receive(waiting.pop(name), Push(TOPIC, data), PEERS))
        else:
            sends = list(spread.hear(PEERS[number], [name]))
        clock.advance(0.7)
        for peer, want in (*sends, *spread.look(PEERS, ())):
            waiting |= dict.fromkeys(want.ids, peer)
        assert all(count <= WINDOW for count in Counter(waiting.values()).values())


def test_a_flood_of_names_pushes_nobody_out_who_was_asked() -> None:
    spread, _ = made()
    good = message_id(TOPIC, LARGE)
    list(spread.hear(PEERS[0], [good]))
    for number in range(40):
        list(spread.hear(PEERS[1], [bytes([number, i]) * 16 for i in range(64)]))
    assert sum(len(want.ids) for _, want in spread.hear(PEERS[2], [b"o" * 32])) == 1
    assert list(spread.receive(PEERS[0], Push(TOPIC, LARGE), PEERS))  # welcome and passed on


def test_a_late_copy_of_what_was_refused_or_given_up_ends_no_link() -> None:
    spread, clock = made(Ruling.REJECT)
    name = message_id(TOPIC, LARGE)
    for peer in PEERS[:2]:
        list(spread.hear(peer, [name]))
    clock.advance(WANT_S + 1)
    assert list(spread.look(PEERS, ())) == [(PEERS[1], Want((name,)))]
    assert not list(spread.receive(PEERS[1], Push(TOPIC, LARGE), PEERS))
    assert not list(spread.receive(PEERS[0], Push(TOPIC, LARGE), PEERS))  # it was asked, too
    other = message_id(TOPIC, b"2" + LARGE)
    list(spread.hear(PEERS[0], [other]))
    assert not list(spread.look([], ()))  # nobody is left to ask
    assert not list(spread.receive(PEERS[0], Push(TOPIC, b"2" + LARGE), PEERS))
