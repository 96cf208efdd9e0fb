"""Every attack against a small crowd: honest nodes go on, and what should stop it is seen to; then without it."""

from functools import lru_cache

import pytest

from waggle.lab.attacks import ATTACKS, SYBIL_KEYS
from waggle.lab.census import Result
from waggle.lab.crowd import Setup, simulate

pytestmark = pytest.mark.slow
PEERS, ROUNDS = 16, 16
REFUSING = sorted(name for name, attack in ATTACKS.items() if attack.reasons)


@lru_cache(maxsize=64)
def played(name: str = "", undefended: bool = False) -> Result:
    hostile, settings = num_hostile(name), ("round.local=2",)
    return simulate(Setup(PEERS, ROUNDS, 0, 0, 0, name, hostile, undefended=undefended, memo=True, settings=settings))


def num_hostile(name: str) -> int:
    return 0 if not name else 1 if ATTACKS[name].keys > 1 else 2


def last(name: str = "", undefended: bool = False) -> float:
    return played(name, undefended).rows[-1].skill


def taken(name: str, undefended: bool = False) -> float:
    return played(name, undefended).means()["from_hostile"]


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_honest_nodes_go_on(name: str) -> None:
    result = played(name)
    assert result.rows[-1].online == PEERS - num_hostile(name) * ATTACKS[name].keys
    assert all(not row.stalled and not row.hungry for row in result.rows if row.round > 4)
    assert last(name) > last() - 0.03


@pytest.mark.parametrize("name", REFUSING)
def test_what_should_stop_it_is_counted(name: str) -> None:
    assert set(ATTACKS[name].reasons) <= set(played(name).refused)


def test_nothing_is_refused_where_nobody_attacks() -> None:
    assert not played().refused


@pytest.mark.parametrize("name", ["wrong-truth", "other-group-sizes", "planted-out-of-context"])
def test_none_of_it_is_trained_on(name: str) -> None:
    assert taken(name) < 0.01  # the answer to another question may be right by chance
    assert taken(name, undefended=True) > 0.02


def test_believing_what_is_claimed_costs_skill() -> None:
    assert last("wrong-truth", undefended=True) < last("", undefended=True) - 0.01


def test_copies_are_taken_for_own_work_only_without_the_checks() -> None:
    assert taken("copied-experience") < 0.5 * taken("copied-experience", undefended=True)
    assert "not-drawn" not in played("copied-experience", undefended=True).refused


def test_text_behind_an_answer_spreads_only_where_it_is_believed() -> None:
    assert played("planted-out-of-context").rows[-1].planted == 0
    assert played("planted-out-of-context", undefended=True).rows[-1].planted > 0.005


def test_text_within_a_right_answer_spreads_no_further_than_its_share_of_what_is_used() -> None:
    result = played("planted-in-context")
    assert 0 < result.rows[-1].planted < result.means()["from_hostile"]


def test_answers_get_less_long_with_the_limits() -> None:
    bounded, free = played("long-answers").rows[-1].extra_chars, played("long-answers", undefended=True).rows[-1]
    assert played().rows[-1].extra_chars < bounded < free.extra_chars


def test_a_crowd_of_keys_gets_much_and_never_all() -> None:
    assert SYBIL_KEYS == PEERS / 2
    assert 0.5 < taken("sybil") < 0.9  # its groups always have a signal, about half of the others' do


def test_a_flood_is_cut_off_at_its_neighbours_share() -> None:
    assert played("flooding").refused["too-many"] > 50
    assert "too-many" not in played("flooding", undefended=True).refused
    assert taken("flooding") < taken("flooding", undefended=True)


def test_what_is_replayed_is_never_trained_on_twice() -> None:
    assert played("replay").refused == {"signature": played("replay").refused["signature"]}
    assert taken("replay") < 0.3
