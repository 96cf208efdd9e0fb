"""Two models on the same questions: differences, their intervals, and how often those are right."""

import math

import numpy as np
import pytest

from waggle.core.rng import rng_for
from waggle.node.comparison import Comparison, compare
from waggle.node.evaluate import Outcome


def outcomes(*rewards: float | None, times: int = 1, family: str = "sums") -> list[Outcome]:
    return [Outcome(bytes([number]) * 32, family, "", times, (reward,)) for number, reward in enumerate(rewards)]


def over(first: list[Outcome], second: list[Outcome]) -> Comparison:
    return compare(first, second)[-1]


def test_a_difference_and_its_interval_by_hand() -> None:
    found = over(outcomes(*[0.0] * 9, 1.0), outcomes(*[1.0] * 4, *[0.0] * 6))
    p, q = 5 / 12, 2 / 12  # Bonett and Price 2012: (4 + 1) / (10 + 2), (1 + 1) / (10 + 2)
    half = 1.959964 * math.sqrt((p + q - (p - q) ** 2) / 12)
    assert found[:3] == ("all", 10, pytest.approx(0.3))
    assert (found.low, found.high) == pytest.approx((p - q - half, p - q + half))
    assert (found.better, found.worse) == (4, 1)


def test_models_that_answer_alike_are_not_known_to_be_equal() -> None:
    found = over(outcomes(*[1.0] * 50), outcomes(*[1.0] * 50))
    assert found.difference == 0
    assert -0.1 < found.low < 0 < found.high < 0.1
    assert over(outcomes(0.0), outcomes(1.0)).low < 0, "one question proves nothing"


@pytest.mark.parametrize(("better", "worse"), [(0.1, 0.1), (0.3, 0.1), (0.05, 0.0), (0.02, 0.02)])
@pytest.mark.parametrize("num", [30, 100])
def test_intervals_hold_the_truth_nineteen_times_of_twenty(better: float, worse: float, num: int) -> None:
    rng = rng_for("coverage", int(100 * better), int(100 * worse), num)
    held = 0
    for _ in range(400):
        draws = rng.random(num)
        ups, downs = draws < better, (draws >= better) & (draws < better + worse)
        first, second = np.where(downs, 1.0, 0.0), np.where(ups, 1.0, 0.0)
        many = [Outcome(b"%032d" % i, "x", "", 1, (float(a),)) for i, a in enumerate(first)]
        found = over(many, [one._replace(rewards=(float(b),)) for one, b in zip(many, second, strict=True)])
        held += found.low <= better - worse <= found.high
    assert held / 400 >= 0.93


def test_weights_that_are_equal_change_nothing_and_ungraded_answers_are_left_out() -> None:
    one = over(outcomes(0.0, 1.0, 0.0), outcomes(1.0, 1.0, 0.0))
    assert over(outcomes(0.0, 1.0, 0.0, times=7), outcomes(1.0, 1.0, 0.0, times=7)) == pytest.approx(one)
    assert over(outcomes(0.0, 1.0, 0.0, None), outcomes(1.0, 1.0, 0.0, 1.0)) == one
    assert over(outcomes(None), outcomes(1.0)) == ("all", 0, 0.0, -1.0, 1.0, 0, 0)


def test_families_are_compared_apart_and_the_same_questions_only() -> None:
    first = [*outcomes(0.0), *outcomes(1.0, family="words")]
    second = [*outcomes(1.0), *outcomes(0.0, family="words")]
    assert [(one.family, one.difference) for one in compare(first, second)] == [("sums", 1), ("words", -1), ("all", 0)]
    with pytest.raises(ValueError, match="different questions"):
        compare(outcomes(1.0), outcomes(1.0, 0.0))


def test_several_answers_count_by_their_mean() -> None:
    first = [one._replace(rewards=(1.0, 0.0, None, 0.5)) for one in outcomes(0.0)]
    assert over(first, outcomes(1.0)).difference == 0.5
