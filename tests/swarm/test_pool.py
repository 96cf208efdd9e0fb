"""The pool: bounded whatever comes, fair to small authors, the same after a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import ALICE, BOB, EVE, group
from waggle.core.errors import DecodeError
from waggle.swarm.pool import Pool


def ids(pool: Pool) -> list[bytes]:
    return [one.id for one in pool.groups()]


def test_groups_come_and_are_found() -> None:
    pool = Pool(4, 1000, max_lag=3)
    assert pool.insert(group(0), 100, 7)
    assert not pool.insert(group(0), 100, 8)
    assert group(0).id in pool
    assert len(pool) == 1
    (kept,) = pool.entries()
    assert (kept.group, kept.size_bytes, kept.round, kept.uses) == (group(0), 100, 7, 0)


def test_the_oldest_leaves_where_there_is_no_room() -> None:
    pool = Pool(3, 1000, max_lag=9)
    for number in range(5):
        pool.insert(group(number), 10, 0)
    assert ids(pool) == [group(number).id for number in (2, 3, 4)]
    assert pool.counts == {"inserted": 5, "crowded-out": 2}


def test_bytes_are_bounded_too() -> None:
    pool = Pool(99, 100, max_lag=9)
    for number in range(3):
        pool.insert(group(number), 40, 0)
    assert (len(pool), pool.size_bytes) == (2, 80)
    assert not pool.insert(group(9), 101, 0)
    assert pool.size_bytes <= 100


def test_who_sends_most_loses_first() -> None:
    pool = Pool(6, 10_000, max_lag=9)
    for number in range(3):
        pool.insert(group(number, author=ALICE.id), 10, 0)
    for number in range(50):
        pool.insert(group(number, author=EVE.id), 10, 0)
    pool.insert(group(0, author=BOB.id), 10, 0)
    held = [one.author for one in pool.groups()]
    assert (held.count(ALICE.id), held.count(BOB.id), held.count(EVE.id)) == (2, 1, 3)


def test_age_is_counted_in_my_rounds() -> None:
    pool = Pool(9, 1000, max_lag=3)
    for number in range(4):
        pool.insert(group(number), 10, number)
    assert pool.expire(3) == 0
    assert pool.expire(5) == 2
    assert ids(pool) == [group(2).id, group(3).id]
    assert (pool.counts["expired"], pool.size_bytes) == (2, 20)


def test_used_as_often_as_allowed_and_gone() -> None:
    once, twice = Pool(9, 1000, 9), Pool(9, 1000, 9)
    for pool, most in ((once, 1), (twice, 2)):
        pool.insert(group(0), 10, 0)
        pool.use([group(0).id], lambda kept, most=most: kept.uses < most)
    assert (len(once), once.counts["used"]) == (0, 1)
    assert [kept.uses for kept in twice.entries()] == [1]
    twice.use([group(0).id])
    assert (len(twice), twice.size_bytes) == (0, 0)


def test_using_what_is_not_there_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Pool(9, 1000, 9).use([b"x"])


AUTHORS = (ALICE.id, BOB.id, EVE.id)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 15), st.sampled_from(AUTHORS), st.integers(0, 60)),
        st.tuples(st.just("use"), st.integers(0, 3)),
        st.tuples(st.just("round")),
    ),
    max_size=40,
)


def act(pool: Pool, step: tuple, round: int) -> None:  # type: ignore[type-arg]
    if step[0] == "insert":
        pool.insert(group(step[1], author=step[2]), step[3], round)
    elif step[0] == "use":
        pool.use(ids(pool)[: step[1]], lambda kept: kept.uses < 2)
    else:
        pool.expire(round)


@given(STEPS, st.data())
def test_bounds_hold_and_a_restart_changes_nothing(steps: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    pool = Pool(5, 150, max_lag=2)
    cut = data.draw(st.integers(0, len(steps)))
    other, round = Pool(5, 150, max_lag=2), 0
    for number, step in enumerate(steps):
        if number == cut:
            other.restore(pool.state())
        round += step[0] == "round"
        act(pool, step, round)
        if number >= cut:
            act(other, step, round)
        assert len(pool) <= 5
        assert sum(kept.size_bytes for kept in pool.entries()) == pool.size_bytes <= 150
        left = sum(pool.counts[reason] for reason in ("used", "expired", "crowded-out"))
        assert pool.counts["inserted"] == len(pool) + left
    if cut < len(steps):
        assert other.state() == pool.state()


@pytest.mark.parametrize("state", [b"", b"junk", Pool(1, 1, 1).state()[:-1]])
def test_a_broken_state_is_refused_and_changes_nothing(state: bytes) -> None:
    pool = Pool(9, 1000, 9)
    pool.insert(group(0), 10, 0)
    with pytest.raises(DecodeError):
        pool.restore(state)
    assert len(pool) == 1
