"""How much of peers' experience is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waggle.swarm.dose import ALONE, Dose, next_dose


def after(rates: list[float], best: float = 0.6, asked: int = 60) -> list[float]:
    dose, levels = Dose(), []
    for rate in rates:
        dose = next_dose(dose, rate, best, asked)
        levels.append(dose.level)
    return levels


def test_all_of_j_while_nothing_falls() -> None:
    assert after([0.6, 0.7, 0.55, 0.5]) == [1.0] * 4


def test_one_fall_halves_two_in_a_row_end_it_and_it_comes_back() -> None:
    levels = after([0.2, 0.6, 0.6, 0.6])
    assert levels == [0.5, 0.75, 1.0, 1.0]
    levels = after([0.2, 0.2] + [0.6] * (ALONE + 4))
    assert levels == [0.5, *[0.0] * ALONE, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_chance_alone_seldom_ends_it() -> None:
    assert after([0.45, 0.45, 0.45]) == [1.0] * 3  # 0.15 below the best of 60 answers is within two standard errors
    assert after([0.40, 0.40], asked=600) == [0.5, 0.0]


def test_before_the_first_evaluation_there_is_nothing_to_fall_from() -> None:
    assert next_dose(Dose(), 0.0, -1.0, 60) == Dose()


@pytest.mark.parametrize(
    ("level", "foreign", "taken"), [(1.0, 6, 6), (0.5, 6, 3), (0.1, 6, 1), (0.0, 6, 0), (1.0, 0, 0)]
)
def test_of_j(level: float, foreign: int, taken: int) -> None:
    assert Dose(level).of(foreign) == taken


@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0, 1), st.integers(1, 500))
def test_it_stays_within_bounds_and_nobody_is_alone_for_ever(rates: list[float], best: float, asked: int) -> None:
    levels = after(rates, best, asked)
    assert all(0 <= level <= 1 for level in levels)
    assert "0" * (ALONE + 1) not in "".join("0" if level == 0 else "1" for level in levels)
