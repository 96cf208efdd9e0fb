"""Trust: weights stay within bounds, quarantine ends, memory is bounded, and who gives is served, however slow."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waggle.core.codec import decode, encode
from waggle.node.state import State
from waggle.swarm.admission import Reason
from waggle.swarm.trust import (
    DECAY,
    DOUBT,
    FAULTS,
    FIRST_ROUNDS,
    FLOOR,
    FORGIVEN,
    GAIN_SCALE,
    MAX_HOSTILE,
    MOST_ROUNDS,
    MOST_USEFUL,
    NO_QUARANTINE,
    PRIOR_EVALUATIONS,
    Fault,
    Trust,
)

ALICE, BOB, EVE = (name * 32 for name in (b"a", b"b", b"e"))
NEWCOMER = 0.8


def hostile(trust: Trust, author: bytes = EVE, num: int = 5) -> None:
    for _ in range(num):
        trust.refuse(author, Reason.NOT_DRAWN)


def passed(trust: Trust, first: int, last: int) -> list[str]:
    """What these rounds changed."""
    return [f"{c.event} {number}" for number in range(first, last + 1) for c in trust.next_round(number)]


def test_every_reason_has_its_fault() -> None:
    assert set(FAULTS) == set(Reason)
    assert {Reason.DUPLICATE, Reason.STALE, Reason.FUTURE} <= {r for r, f in FAULTS.items() if f is Fault.INNOCENT}


@pytest.mark.parametrize("reason", Reason)
def test_only_hostile_refusals_lead_to_quarantine_and_innocent_ones_cost_nothing(reason: Reason) -> None:
    trust = Trust()
    for _ in range(50):
        trust.refuse(EVE, reason)
    fault = FAULTS[reason]
    assert bool(passed(trust, 1, 1)) is (fault is Fault.HOSTILE)
    assert trust.quarantined(EVE) == (str(reason) if fault is Fault.HOSTILE else "")
    assert (trust.weight(EVE) == NEWCOMER) is (fault is Fault.INNOCENT)
    assert len(trust) == (fault is not Fault.INNOCENT)


def test_weights_by_what_was_measured() -> None:
    trust = Trust()
    assert trust.weight(ALICE) == NEWCOMER
    for _ in range(30):
        trust.admit(ALICE)
    assert trust.weight(ALICE) == pytest.approx(38 / 40)
    for _ in range(30):
        trust.refuse(ALICE, Reason.TOKENS)
    assert trust.weight(ALICE) == pytest.approx(38 / 70)
    for _ in range(12):
        trust.refuse(ALICE, Reason.COPY)
    assert trust.weight(ALICE) == pytest.approx(38 / 70 * (1 - 12 / 50))
    for _ in range(10_000):
        trust.refuse(ALICE, Reason.SCHEMA)
    assert trust.weight(ALICE) == FLOOR


def test_usefulness_is_shrunk_bounded_and_shared_by_the_groups_that_were_used() -> None:
    trust = Trust()
    trust.use([ALICE, ALICE, ALICE, BOB])
    trust.credit(None)  # the first evaluation: nothing to compare it with
    assert (trust.standing(ALICE).judged, trust.standing(ALICE).used) == (0, 0)
    trust.use([ALICE, ALICE, ALICE, BOB])
    trust.credit(-0.1)
    assert trust.standing(ALICE).mean_gain == pytest.approx(-0.075 / (0.75 + PRIOR_EVALUATIONS))
    assert trust.weight(ALICE) == pytest.approx(NEWCOMER * (1 - 0.075 / (0.75 + PRIOR_EVALUATIONS) / GAIN_SCALE))
    assert trust.weight(EVE) == NEWCOMER
    trust.credit(-1.0)  # nobody was used since
    assert NEWCOMER * 0.9 < trust.weight(ALICE) < trust.weight(BOB) < NEWCOMER
    for _ in range(500):
        trust.use([BOB])
        trust.credit(0.9)
        trust.use([EVE])
        trust.credit(-0.9)
    assert trust.weight(BOB) == min(1.0, NEWCOMER * MOST_USEFUL)
    assert trust.weight(EVE) == NEWCOMER * 0.5


def test_noise_moves_little() -> None:
    trust = Trust()
    for delta in (0.09, -0.07, 0.05, -0.09, 0.08):  # of 60 questions each
        trust.use([ALICE] * 6)
        trust.credit(delta)
        assert abs(trust.weight(ALICE) / NEWCOMER - 1) < 0.11


def test_quarantine_ends_and_begins_again_for_twice_as_long() -> None:
    trust = Trust()
    number, lasts = 0, FIRST_ROUNDS
    for times in range(1, 12):
        hostile(trust)
        number += 1
        (change,) = trust.next_round(number)
        assert change == ("quarantined", EVE, "not-drawn", number + lasts)
        assert trust.standing(EVE).times == times
        assert passed(trust, number + 1, number + lasts - 1) == []
        assert trust.quarantined(EVE) == "not-drawn"
        number += lasts
        assert passed(trust, number, number) == [f"released {number}"]
        assert trust.quarantined(EVE) == ""
        assert FLOOR < trust.weight(EVE) < 0.25
        assert trust.standing(EVE).refused == 0
        lasts = min(2 * lasts, MOST_ROUNDS)


def test_good_behaviour_restores_what_was_lost_and_in_the_end_all_is_forgiven() -> None:
    trust = Trust()
    hostile(trust)
    passed(trust, 1, 1 + FIRST_ROUNDS)
    silent, busy = Trust(), Trust()
    for one in (silent, busy):
        one.restore(trust.state())
    weights = []
    for number in range(18, 68):
        busy.admit(EVE)
        for one in (silent, busy):
            one.next_round(number)
        weights.append(busy.weight(EVE))
    assert weights == sorted(weights)
    assert weights[-1] > NEWCOMER * 0.8 > silent.weight(EVE)
    while busy.standing(EVE).doubt * DECAY > FORGIVEN:
        number += 1
        assert busy.standing(EVE).times == 1
        busy.next_round(number)
    busy.next_round(number + 1)
    assert busy.standing(EVE).times == 0
    assert busy.standing(EVE).doubt < FORGIVEN < DOUBT


def test_old_faults_are_forgotten_and_a_rare_one_is_no_matter() -> None:
    trust = Trust()
    for number in range(1, 500):
        if number % 20 == 0:
            trust.refuse(EVE, Reason.HELD_OUT)
        assert not trust.next_round(number)
        assert trust.standing(EVE).refused < MAX_HOSTILE
    passed(trust, 500, 900)
    assert trust.weight(EVE) == pytest.approx(NEWCOMER, abs=0.001)


def test_without_quarantine_nobody_is_put_there() -> None:
    trust = Trust(NO_QUARANTINE)
    hostile(trust, num=1000)
    assert passed(trust, 1, 5) == []
    assert trust.quarantined(EVE) == ""


EVENTS = st.tuples(st.sampled_from(["admit", "use", "contribute", "take", *Reason]), st.integers(0, 5))


def play(trust: Trust, rounds: Sequence[tuple[Sequence[tuple[str, int]], float | None]], first: int = 1) -> None:
    for number, (events, delta) in enumerate(rounds, first):
        for what, who in events:
            author = bytes([who]) * 32
            if isinstance(what, Reason):
                trust.refuse(author, what)
            elif what == "use":
                trust.use([author])
            else:
                getattr(trust, what)(author)
        if delta is not None:
            trust.credit(delta)
        trust.next_round(number)


ROUNDS = st.lists(
    st.tuples(st.lists(EVENTS, max_size=12), st.none() | st.floats(-1, 1)), max_size=30
)  # of a node that hears six peers


@settings(max_examples=60)
@given(ROUNDS)
def test_whatever_happens_weights_and_shares_stay_within_bounds_and_quarantine_ends(
    rounds: list[tuple[list[tuple[str, int]], float | None]],
) -> None:
    trust = Trust()
    play(trust, rounds)
    for who in range(7):
        assert FLOOR <= trust.weight(bytes([who]) * 32) <= 1
        assert 0.25 <= trust.share(bytes([who]) * 32, 0.25) <= 1
    last = max((one.quarantined_until for one in trust.state()), default=0)
    assert last <= len(rounds) + MOST_ROUNDS
    trust.next_round(max(last, len(rounds)))
    for one in trust.state():
        trust.restore([one])
        if one.refused <= MAX_HOSTILE:
            assert not trust.quarantined(one.author)


@settings(max_examples=60)
@given(ROUNDS, st.integers(0, 30))
def test_what_was_stored_goes_on_as_if_it_had_not_stopped(
    rounds: list[tuple[list[tuple[str, int]], float | None]], stop: int
) -> None:
    straight, first, second = Trust(), Trust(), Trust()
    play(straight, rounds)
    play(first, rounds[:stop])
    stored = encode(State(lineage=b"l" * 32, standings=first.state()))
    second.restore(decode(State, stored).standings)
    play(second, rounds[stop:], 1 + len(rounds[:stop]))
    assert second.state() == straight.state()


def test_the_longest_silent_is_forgotten_and_whoever_is_in_quarantine_last() -> None:
    trust = Trust(max_authors=4)
    hostile(trust)
    trust.next_round(1)
    for who in range(20):
        trust.admit(bytes([who]) * 32)
        trust.admit(bytes([0]) * 32)  # heard all the time
        assert len(trust) <= 4
        assert trust.quarantined(EVE)
    assert [one.author[0] for one in trust.state()] == [EVE[0], 18, 19, 0]
    for who in range(4):
        hostile(trust, bytes([100 + who]) * 32)
        trust.next_round(2)
    assert all(one.quarantined_until for one in trust.state())
    trust.admit(ALICE)  # a newcomer finds a place even so
    assert [one.author for one in trust.state()][-1] == ALICE
    assert len(trust) == 4


def turns(trust: Trust, author: bytes, gives: Sequence[bool]) -> list[float]:
    """The share at each pull of a peer that announces something before it, or not."""
    shares = []
    for giving in gives:
        if giving:
            trust.contribute(author)
        shares.append(trust.share(author, 0.25))
        trust.take(author)
    return shares


def test_who_takes_and_never_gives_gets_the_floor_after_a_newcomers_turns() -> None:
    shares = turns(Trust(), EVE, [False] * 100)
    assert shares[:7] == [1.0] * 7
    assert shares == sorted(shares, reverse=True)
    assert 0.25 < shares[20] < 1
    assert shares[-1] == 0.25


@pytest.mark.parametrize("pattern", [[True], [True, False], [True, True, True, False]])
def test_who_gives_in_most_of_its_turns_is_served_in_full(pattern: list[bool]) -> None:
    trust = Trust()
    assert turns(trust, ALICE, pattern * 100) == [1.0] * 100 * len(pattern)
    assert trust.shares(0.25) == {}


def test_who_gives_seldom_is_served_in_proportion_and_who_begins_to_give_comes_back() -> None:
    trust = Trust()
    seldom = turns(trust, BOB, [True, False, False] * 100)
    assert 0.65 < seldom[-1] < 0.9
    turns(trust, EVE, [False] * 200)
    assert set(trust.shares(0.25)) == {BOB, EVE}
    assert turns(trust, EVE, [True] * 60)[-1] == 1.0


def test_pauses_of_mine_and_rounds_of_mine_do_not_count() -> None:
    """A slow peer plays one round in a hundred of mine and gives all it has."""
    trust = Trust()
    for number in range(1, 3000):
        trust.next_round(number)
        if number % 100 == 0:
            assert turns(trust, ALICE, [True]) == [1.0]
            turns(trust, EVE, [False])
    assert trust.share(EVE, 0.25) < 1


def test_a_store_of_announcements_lasts_for_a_window_at_most() -> None:
    trust = Trust()
    for _ in range(10_000):
        trust.contribute(EVE)
    assert turns(trust, EVE, [False] * 300)[-1] == 0.25
