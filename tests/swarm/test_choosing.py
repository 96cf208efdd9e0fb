"""Waggle's own choice among foreign groups: what each factor does, and what no peer can do."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import ALICE, BOB, EVE, group, replace, rng
from waggle.core.config import ShareConfig
from waggle.core.types import Completion, Group, Rollout, Text, Verdict
from waggle.swarm.choosing import FACTORS, HALF_LIFE, Candidate, Rules, choose, learnability

OPEN = Rules(even=0.0, quota=1.0)


def candidate(
    number: int, rewards: tuple[float, ...] = (0.0, 1.0), author: bytes = ALICE.id, **known: float
) -> Candidate:
    facts = {"age": 0, "uses": 0, "rate": 0.1, "trust": 1.0} | known
    return Candidate(group(number, rewards, author), **facts)  # type: ignore[arg-type]


def saying(number: int, text: str, author: bytes) -> Candidate:
    one = candidate(number, author=author)
    rollouts = tuple(Rollout(Completion((Text(t),), "stop"), Verdict(r)) for t, r in (("no", 0.0), (text, 1.0)))
    return one._replace(group=replace(one.group, rollouts=rollouts))


def share_of_first(first: Candidate, second: Candidate, rules: Rules = OPEN) -> float:
    """How often the first of two is drawn where one is."""
    draws = [choose([first, second], 1, rng("pair", seed), rules)[0].reason == "drawn" for seed in range(600)]
    return sum(draws) / len(draws)


def test_the_setting_names_every_factor() -> None:
    assert ShareConfig().factors == FACTORS
    plain = Rules()
    assert (ShareConfig().even, ShareConfig().quota) == (plain.even, plain.quota)


@pytest.mark.parametrize(
    ("rate", "rewards", "expected"),
    [
        (0.0, (1.0, 0.0, 0.0, 0.0), 0.25),
        (0.0, (1.0, 1.0, 1.0, 0.0), 0.75),
        (0.5, (1.0, 0.0), 0.25),
        (1.0, (1.0, 0.0), 0.0),
    ],
)
def test_learnability(rate: float, rewards: tuple[float, ...], expected: float) -> None:
    assert learnability(candidate(0, rewards, rate=rate)) == pytest.approx(expected)


def test_where_i_am_always_wrong_more_right_answers_are_worth_more() -> None:
    many, few = candidate(0, (1.0, 1.0, 1.0, 0.0), rate=0.0), candidate(1, (1.0, 0.0, 0.0, 0.0), rate=0.0)
    assert 0.70 < share_of_first(many, few) < 0.80


def test_fresh_before_old_new_before_used_trusted_before_doubted() -> None:
    plain = candidate(0)
    assert 0.62 < share_of_first(plain, candidate(1, age=HALF_LIFE)) < 0.71
    assert 0.62 < share_of_first(plain, candidate(1, uses=1)) < 0.71
    assert share_of_first(plain, candidate(1, trust=0.1)) > 0.87


def test_the_same_answers_from_many_peers_count_as_one() -> None:
    crowd = [saying(7, "seven", bytes([n]) * 32) for n in range(9)]
    crowd = [c._replace(group=replace(c.group, id=bytes([n]) * 32)) for n, c in enumerate(crowd)]
    other = saying(8, "eight", BOB.id)
    drawn = Counter(
        [choice.reason for choice in choose([*crowd, other], 1, rng("crowd", seed), OPEN)].index("drawn") == 9
        for seed in range(400)
    )
    assert 0.4 < drawn[True] / 400 < 0.6


def test_needless_length_costs_and_twice_the_usual_does_not() -> None:
    usual = [saying(n, "x" * 40, bytes([n]) * 32) for n in range(1, 5)]
    long, double = saying(8, "y" * 400, EVE.id), saying(9, "z" * 80, EVE.id)
    factors = [choice.factors["brevity"] for choice in choose([*usual, long, double], 0, rng("long"), OPEN)]
    assert factors[:4] == [1.0] * 4
    assert factors[4] == pytest.approx(0.04, abs=0.02)
    assert factors[5] == 1.0


def test_a_second_family_comes_before_more_of_the_first() -> None:
    first = [candidate(n) for n in range(20)]
    other = candidate(50)
    ref = replace(other.group.task.ref, config=b"o" * 32)
    other = other._replace(group=replace(other.group, task=replace(other.group.task, ref=ref)))

    def share(rules: Rules) -> float:
        return sum(choose([*first, other], 4, rng("two", s), rules)[-1].reason == "drawn" for s in range(300)) / 300

    without = Rules(tuple(f for f in FACTORS if f != "balance"), 0.0, 1.0)
    assert share(OPEN) > 1.4 * share(without)


def test_a_factor_left_out_changes_nothing() -> None:
    rules = Rules(("learnability",), 0.0, 1.0)
    assert 0.44 < share_of_first(candidate(0), candidate(1, trust=0.01, age=99), rules) < 0.56
    assert set(choose([candidate(0)], 1, rng("one"), rules)[0].factors) == {"learnability"}


def test_an_even_share_of_draws_gives_everybody_a_chance() -> None:
    hopeless = candidate(1, trust=0.001, age=1000)
    assert share_of_first(hopeless, candidate(0)) < 0.02
    assert 0.3 < share_of_first(hopeless, candidate(0), Rules(even=0.8, quota=1.0)) < 0.5


@given(
    st.lists(st.tuples(st.sampled_from([ALICE.id, BOB.id, EVE.id]), st.floats(0, 1), st.integers(0, 99)), max_size=30),
    st.integers(0, 12),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_bounds_hold_whatever_there_is(
    peers: list[tuple[bytes, float, int]], limit: int, quota: float, seed: int
) -> None:
    many = [candidate(n, author=a, rate=r, age=age) for n, (a, r, age) in enumerate(peers)]
    flat: Group = group(99, (1.0, 1.0))
    many.append(candidate(0)._replace(group=flat))
    choices = choose(many, limit, rng("bounds", seed), Rules(quota=quota))
    drawn = [c.group.author for c, choice in zip(many, choices, strict=True) if choice.reason == "drawn"]
    assert len(choices) == len(many)
    assert choices[-1].reason == "no-signal"
    assert len(drawn) <= limit
    assert all(count <= max(1, int(quota * limit)) for count in Counter(drawn).values())
    again = choose(many, limit, rng("bounds", seed), Rules(quota=quota))
    assert again == choices
