"""Curves, areas and intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waggle.core.rng import rng_for
from waggle.lab.stats import area, at, mean_of, reached, smallest_found, swing, t_quantile


def test_the_interval_is_students() -> None:
    found = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.high - 3.0 == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5))
    assert 3.0 - found.low == pytest.approx(found.high - 3.0)


def test_one_seed_says_nothing_about_the_next() -> None:
    assert mean_of([0.5]) == (0.5, -math.inf, math.inf, 1)
    assert str(mean_of([0.5])) == "0.500"
    with pytest.raises(ValueError, match="needs a value"):
        mean_of([])


def test_intervals_hold_what_they_should_about_as_often_as_they_say() -> None:
    rng = rng_for("coverage")
    held = 0
    for _ in range(2000):
        found = mean_of(rng.normal(0.3, 0.1, 5).tolist())
        held += found.low <= 0.3 <= found.high
    assert 0.935 < held / 2000 < 0.965


def test_a_difference_of_the_size_that_is_promised_is_found_four_times_in_five() -> None:
    rng, found = rng_for("power"), 0
    size = smallest_found(_spread(5, 0.1))
    for _ in range(4000):
        found += mean_of(rng.normal(size, 0.1, 5).tolist()).low > 0
    assert 0.72 < found / 4000 < 0.88


def _spread(num: int, deviation: float) -> list[float]:
    """Values whose standard deviation is this one."""
    values = np.linspace(-1, 1, num)
    return (values / np.std(values, ddof=1) * deviation).tolist()


def test_quantiles_fall_towards_those_of_the_normal() -> None:
    values = [t_quantile(n) for n in range(1, 40)]
    assert values == sorted(values, reverse=True)
    assert 1.96 < values[-1] < 2.05


def test_the_area_is_above_the_start_and_up_to_the_budget() -> None:
    assert area([0, 10], [0.1, 0.5], 10) == pytest.approx(0.2)
    assert area([0, 10], [0.1, 0.5], 5) == pytest.approx(0.1)
    assert area([0, 5, 10], [0.3, 0.3, 0.3], 10) == 0.0
    assert area([0, 1], [0, 1], 0) == 0.0


def test_between_points_a_straight_line_and_beyond_them_the_last() -> None:
    assert [at([0, 10], [0.0, 1.0], x) for x in (-1, 2.5, 10, 99)] == [0.0, 0.25, 1.0, 1.0]


def test_where_a_level_is_first_reached() -> None:
    x, y = [0, 10, 20, 30], [0.0, 0.4, 0.2, 0.8]
    assert reached(x, y, 0.2) == 5
    assert reached(x, y, 0.5) == 25
    assert reached(x, y, 0.0) == 0
    assert reached(x, y, 0.9) == math.inf


def test_swing_is_about_the_trend() -> None:
    assert swing([n / 10 for n in range(20)]) == pytest.approx(0, abs=1e-9)
    assert swing([0.5 + 0.1 * (-1) ** n for n in range(20)]) == pytest.approx(0.1, rel=0.1)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_an_area_lies_between_the_lowest_and_the_highest_point(y: list[float]) -> None:
    x = list(range(len(y)))
    found = area(x, y, x[-1])
    assert min(y) - y[0] - 1e-9 <= found <= max(y) - y[0] + 1e-9
