"""Small crowds: what must go on under churn, delay and partition, what spreads, and that equal seeds are equal."""

from functools import lru_cache

import pytest

from waggle.core.errors import ConfigError
from waggle.lab.census import Result, Row
from waggle.lab.crowd import Crowd, Setup, simulate

SMALL = Setup(peers=16, rounds=12, memo=True)


@lru_cache(maxsize=32)
def played(**changes: object) -> Result:
    return simulate(Setup(**{"peers": 16, "rounds": 12, "memo": True, **changes}))  # type: ignore[arg-type]


def mean(result: Result, name: str) -> float:
    value = result.means()[name]
    assert isinstance(value, float)
    return value


def later(result: Result) -> tuple[Row, ...]:
    """The rows after the first two rounds, in which nobody has much to offer."""
    return tuple(row for row in result.rows if row.round > 2)


def test_everybody_plays_learns_and_uses_foreign_work() -> None:
    rows = played().rows
    assert [row.round for row in rows] == [0, 2, 4, 6, 8, 10, 12]
    assert sum(row.plays for row in rows) == pytest.approx(16 * 12, rel=0.1)
    assert rows[0].skill == pytest.approx((0.2 * 4 + 0.5 / 16 * 2) / 6)
    assert [row.skill for row in rows] == sorted(row.skill for row in rows)
    assert rows[-1].skill > rows[0].skill + 0.05
    for row in later(played()):
        assert row.foreign > 0.9
        assert not row.stalled
        assert not row.hungry
    assert not played().refused


@pytest.mark.slow
def test_equal_seeds_are_equal_to_the_byte_and_others_are_not() -> None:
    assert simulate(SMALL).csv() == played().csv() == simulate(SMALL).csv()
    assert played(seed=1).csv() != played().csv()


@pytest.mark.slow
def test_shared_results_change_nothing() -> None:
    with_all = {"attack": "malformed", "hostile": 2, "churn": 0.4, "latency_s": 0.2}
    real, shared = played(memo=False, **with_all), played(**with_all)
    assert real.csv() == shared.csv()
    assert real.refused == shared.refused != {}


@pytest.mark.slow
def test_with_latency_rounds_overlap_and_all_goes_on() -> None:
    result = played(latency_s=0.3, loss=0.1)
    assert result.csv() == simulate(Setup(peers=16, rounds=12, memo=True, latency_s=0.3, loss=0.1)).csv()
    assert result.csv() != played().csv()
    assert all(row.foreign > 0.8 and not row.stalled for row in later(result))


@pytest.mark.slow
def test_answers_slower_than_a_round_waits_serve_the_next() -> None:
    result = played(latency_s=4.0)  # eight seconds there and back, where a round waits for five
    assert all(row.foreign > 0.8 and not row.stalled for row in later(result))


@pytest.mark.slow
def test_churn_stalls_nobody() -> None:
    result = played(churn=2.0)
    assert result.rows[-1].online == 16
    for row in later(result):
        assert row.plays > 20
        assert not row.stalled
        assert not row.hungry
    crowd = Crowd(Setup(peers=16, rounds=12, churn=2.0, memo=True))
    crowd.run()
    assert crowd.num_come == 16 + round(2.0 * 16 / 10 * 12)


@pytest.mark.slow
def test_halves_go_on_apart_and_the_rare_success_crosses_when_they_meet() -> None:
    settings = ("share.fanout=8",)
    apart = played(rounds=30, partition=True, settings=settings)
    joined = played(rounds=30, settings=settings)
    assert all(not row.stalled and not row.hungry for row in later(apart))
    during = next(row for row in apart.rows if row.round == 20)
    assert during.reached <= 0.5 + next(row for row in apart.rows if row.round == 10).reached
    assert apart.csv() != joined.csv()


@pytest.mark.slow
def test_who_comes_in_a_partition_finds_somebody_on_his_side() -> None:
    result = played(rounds=15, partition=True, churn=3.0)
    assert all(not row.stalled and not row.hungry for row in later(result))


def test_a_node_that_breaks_ends_the_simulation() -> None:
    crowd = Crowd(Setup(peers=4, rounds=6, memo=True))

    def broken(number: int) -> None:
        next(iter(crowd.seats.values())).node.learner.pack = None  # type: ignore[assignment,method-assign]

    crowd._watch = broken
    with pytest.raises(TypeError):
        crowd.run()


@pytest.mark.slow
def test_a_rare_success_spreads_only_where_it_is_shared() -> None:
    shared, alone = played(rounds=60), played(rounds=60, settings=("round.foreign=0",))
    assert shared.spread_half is not None
    assert shared.rows[-1].reached > 0.5
    assert [row.reached for row in shared.rows] == sorted(row.reached for row in shared.rows)
    assert alone.spread_half is None
    assert alone.rows[-1].reached == 1 / 16
    assert alone.rows[-1].unused == 1.0


@pytest.mark.slow
def test_free_riders_learn_and_give_nothing() -> None:
    result, crowd = played(free_riders=0.5), Crowd(Setup(peers=16, rounds=4, free_riders=0.5, memo=True))
    assert result.rows[-1].online == 8
    assert result.rows[-1].skill_free_riders > 0.2
    crowd.run()
    riders = {peer for peer, seat in crowd.seats.items() if seat.kind == "free"}
    givers = {g.author for seat in crowd.seats.values() for g in seat.node.pool.groups()}
    assert len(riders) == 8
    assert givers
    assert not givers & riders


@pytest.mark.slow
def test_bytes_do_not_grow_with_the_crowd() -> None:
    few, many = played(peers=12), played(peers=48)
    assert mean(many, "sent_bytes") < 1.2 * mean(few, "sent_bytes")


@pytest.mark.slow
def test_memory_of_a_node_is_bounded() -> None:
    crowd = Crowd(Setup(peers=8, rounds=40, memo=True, settings=("share.pool_groups=4", "round.local=2")))
    crowd.run()
    for seat in crowd.seats.values():
        assert len(seat.node.pool) <= 4
        assert len(seat.node.exchange.window) <= 8
        assert len(seat.node.view.seen) <= 512


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hostile": 1}, "--hostile has no effect without --attack"),
        ({"attack": "nope", "hostile": 1}, "no attack 'nope'"),
        ({"attack": "replay"}, "--attack has no effect with --hostile 0"),
        ({"attack": "sybil", "hostile": 2}, "fewer than 2 honest"),
        ({"free_riders": 1.0}, "fewer than 2 honest"),
        ({"partition": True, "rounds": 2}, "at least 3 rounds"),
        ({"settings": ("model.name=tiny",)}, r"\[round\] and \[share\] alone"),
        ({"settings": ("round.lokal=1",)}, r"no setting round\.lokal"),
        ({"settings": ("share.publish=none",)}, "leaves nothing to simulate"),
    ],
)
def test_what_has_no_effect_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Setup(**{"peers": 16, "rounds": 12, **changes}).check()  # type: ignore[arg-type]
