"""Swarm sampling: what is pulled, what is trained on, and a reason for each."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import ALICE, BOB, EVE, body, group, rng, sealed
from waggle.core.config import SAMPLERS
from waggle.core.errors import ConfigError, RunError
from waggle.core.sealing import announce
from waggle.core.types import Announcement, Entry, Group
from waggle.swarm.choosing import Candidate, Rules
from waggle.swarm.sampling import Offer, mix, offers, sampler, top_reward, uniform, wanted

HUGE = 1 << 30


def offer(number: int, author: bytes = ALICE.id, created_ms: int = 0, size_bytes: int = 100) -> Offer:
    one = group(number, author=author)
    news = Announcement(author, b"c" * 32, 1, created_ms, (Entry(one.id, one.task.ref, 8, size_bytes),))
    return Offer(news, 0, author)


def test_an_announcement_becomes_offers() -> None:
    news = announce(b"c" * 32, sealed(body(), body(number=1)))
    made = offers(news, BOB.id)
    assert [one.entry for one in made] == list(news.entries)
    assert {(one.news, one.source) for one in made} == {(news, BOB.id)}


def test_authors_take_turns() -> None:
    many = [offer(number) for number in range(50)] + [offer(0, BOB.id), offer(1, BOB.id), offer(0, EVE.id)]
    chosen = wanted(many, 6, rng("turns"), max_bytes=HUGE)
    counts = Counter(one.news.author for one in chosen)
    assert (counts[ALICE.id], counts[BOB.id], counts[EVE.id]) == (3, 2, 1)


def test_the_newest_come_first_and_within_a_round_by_chance() -> None:
    many = [offer(number, created_ms=number // 5) for number in range(20)]
    firsts = set()
    for seed in range(30):
        chosen = wanted(many, 7, rng("newest", seed), max_bytes=HUGE)
        assert [one.news.created_ms for one in chosen] == [3] * 5 + [2] * 2
        firsts.add(chosen[0].entry.id)
    assert len(firsts) == 5


def test_no_more_than_wanted_in_number_and_bytes() -> None:
    many = [offer(number, size_bytes=300) for number in range(10)]
    assert len(wanted(many, 4, rng(1), max_bytes=HUGE)) == 4
    assert len(wanted(many, 9, rng(1), max_bytes=899)) == 2
    assert len(wanted(many, 9, rng(1), max_bytes=900)) == 3
    three = [offer(number, author) for number in range(5) for author in (ALICE.id, BOB.id, EVE.id)]
    assert len(wanted(three, 4, rng(1), max_bytes=HUGE)) == 4
    assert wanted(many, 0, rng(1), max_bytes=HUGE) == []
    assert wanted([], 4, rng(1), max_bytes=HUGE) == []


def test_what_i_have_and_what_is_offered_twice_is_pulled_once_at_most() -> None:
    again = offer(3)._replace(source=BOB.id)
    chosen = wanted([offer(3), offer(4), again], 9, rng(1), have={offer(4).entry.id}, max_bytes=HUGE)
    assert [one.entry.id for one in chosen] == [offer(3).entry.id]


def test_an_author_of_little_weight_gets_fewer_turns_where_others_wait_and_loses_nothing_where_nobody_does() -> None:
    many = [offer(number, author) for number in range(20) for author in (ALICE.id, BOB.id, EVE.id)]
    weights = {ALICE.id: 1.0, BOB.id: 0.5, EVE.id: 0.1}
    counts: Counter[bytes] = Counter()
    for seed in range(200):
        chosen = wanted(many, 10, rng("weights", seed), max_bytes=HUGE, weight=weights.__getitem__)
        assert len(chosen) == 10
        counts.update(one.news.author for one in chosen)
    assert counts[EVE.id] > 60
    assert 1.7 < counts[ALICE.id] / counts[BOB.id] < 2.3
    assert 7 < counts[ALICE.id] / counts[EVE.id] < 13
    alone = [offer(number, EVE.id) for number in range(20)]
    assert len(wanted(alone, 30, rng(1), max_bytes=HUGE, weight=weights.__getitem__)) == 20


@given(st.permutations(range(12)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    many = [offer(number, (ALICE.id, BOB.id, EVE.id)[number % 3], created_ms=number // 6) for number in range(12)]
    straight = wanted(many, 5, rng("order"), max_bytes=HUGE)
    assert wanted([many[number] for number in order], 5, rng("order"), max_bytes=HUGE) == straight


def seen(groups: list[Group]) -> list[Candidate]:
    return [Candidate(one, age=0, uses=0, rate=0.5, trust=1.0) for one in groups]


def pool_of(num_signal: int, num_flat: int) -> list[Candidate]:
    flat = [group(100 + n, (1.0, 1.0)) for n in range(num_flat)]
    return seen([group(number) for number in range(num_signal)] + flat)


def test_uniform_drops_what_has_no_signal_and_draws_evenly() -> None:
    groups = pool_of(8, 4)
    counts: Counter[bytes] = Counter()
    for seed in range(2000):
        decisions = uniform(groups, 2, rng("uniform", seed))
        assert [decision.id for decision in decisions] == [one.group.id for one in groups]
        assert {d.reason for d in decisions[8:]} == {"no-signal"}
        used = [decision for decision in decisions if decision.used]
        assert [decision.reason for decision in used] == ["drawn", "drawn"]
        counts.update(decision.id for decision in used)
    assert set(counts) == {one.group.id for one in groups[:8]}
    assert all(abs(count - 500) < 100 for count in counts.values())


def test_top_reward_takes_the_highest_sums_whatever_their_signal() -> None:
    groups = seen([group(0, (0.0, 1.0)), group(1, (1.0, 1.0)), group(2, (0.0, 0.0)), group(3, (1.0, 1.0, 0.9))])
    decisions = top_reward(groups, 2, rng("top"))
    assert [d.used for d in decisions] == [False, True, False, True]
    assert [d.reason for d in decisions] == ["lower-reward", "high-reward", "lower-reward", "high-reward"]


def test_ties_of_top_reward_fall_by_chance() -> None:
    groups = seen([group(number) for number in range(6)])
    chosen = {next(d.id for d in top_reward(groups, 1, rng("ties", seed)) if d.used) for seed in range(60)}
    assert len(chosen) == 6


@pytest.mark.parametrize("name", ["uniform", "top_reward", "weighted"])
@pytest.mark.parametrize("size", [0, 1, 3, 10])
def test_fewer_than_j_is_normal(name: str, size: int) -> None:
    groups = pool_of(size, 0)
    mixed = mix([], groups, 6, 4, sampler(name, Rules(quota=1.0)), rng("few", size))
    assert len(mixed.foreign) == min(size, 4)
    assert len(mixed.decisions) == size


def test_own_groups_with_a_signal_in_order_up_to_i() -> None:
    own = [group(0, (1.0, 1.0)), group(1), group(2), group(3, (0.0, 0.0)), group(4)]
    mixed = mix(own, [], 2, 4, uniform, rng("own"))
    assert [one.id for one in mixed.local] == [own[1].id, own[2].id]
    assert [(d.used, d.reason) for d in mixed.decisions] == [
        (False, "no-signal"),
        (True, "own"),
        (True, "own"),
        (False, "no-signal"),
        (False, "enough"),
    ]


def test_j_of_zero_is_plain_training() -> None:
    before = rng("zero")
    mixed = mix([group(0)], pool_of(5, 0), 2, 0, uniform, before)
    assert mixed.foreign == []
    assert [d.reason for d in mixed.decisions] == ["own"]
    assert before.random() == rng("zero").random()


def test_the_same_seed_mixes_the_same() -> None:
    one, same, other = (mix([], pool_of(30, 5), 1, 4, uniform, rng("seed", seed)) for seed in (1, 1, 2))
    assert one == same
    assert one.foreign != other.foreign


def test_every_setting_has_its_sampler() -> None:
    for name in SAMPLERS:
        assert callable(sampler(name, Rules()))


OWN = "examples/own.py:rarest"


def test_a_sampler_of_ones_own_chooses_and_is_kept_to_the_rules(tmp_path: Path) -> None:
    pool = [Candidate(group(n), 0, 0, rate, 1.0) for n, rate in enumerate((0.9, 0.1, 0.5))]
    pool.append(Candidate(group(3, (1.0, 1.0)), 0, 0, 0.0, 1.0))
    drawn = sampler(OWN, Rules())(pool, 2, rng("own"))
    assert [(one.used, one.reason) for one in drawn] == [
        (False, "not-drawn"),
        (True, "rare"),
        (True, "rare"),
        (False, "not-drawn"),
    ]
    for text, says in (
        ("return []", "a Decision on every candidate"),
        ("return [(c.group.id, True, 'all') for c in candidates]", "it uses more than 2 groups"),
        ("return 1 / 0", "line 2: ZeroDivisionError"),
        ("return [7]", "TypeError"),
    ):
        file = tmp_path / f"{abs(hash(text))}.py"
        file.write_text(f"def f(candidates, limit, rng):\n    {text}\n")
        with pytest.raises(RunError, match=says):
            sampler(f"{file}:f", Rules())(pool, 2, rng("own"))
    with pytest.raises(ConfigError, match="there is no function 'none'"):
        sampler("examples/own.py:none", Rules())
