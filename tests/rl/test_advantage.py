import pytest

from waggle.rl.advantage import advantages, most_different


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0], [0.5, -0.5]),
        ([1.0, 0.0, 0.0, 0.0], [0.75, -0.25, -0.25, -0.25]),
        ([1.0, None, 0.0], [0.5, None, -0.5]),
        ([0.5, 0.25, 0.0], [0.25, 0.0, -0.25]),
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        ([0.1, 0.1, None], [0.0, 0.0, None]),
        ([0.3], [0.0]),
        ([None, 1.0], [None, 0.0]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_reward_minus_the_mean_of_what_was_graded(rewards: list[float | None], expected: list[float | None]) -> None:
    assert advantages(rewards) == expected


def test_another_baseline_moves_all_and_a_group_without_a_signal_stays_without_one() -> None:
    assert advantages([1.0, 0.0, None], 0.25) == [0.75, -0.25, None]
    assert advantages([1.0, 1.0], 0.25) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "num", "expected"),
    [
        ([0.0, 1.0, 0.0, 0.0, 1.0, 1.0], 2, [0, 1]),
        ([0.0, 0.0, 0.0, 1.0], 2, [0, 3]),
        ([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 4, [0, 1, 2, 4]),
        ([0.5, 0.0, 1.0, 0.4], 2, [1, 2]),
        ([0.5, 0.5], 4, [0, 1]),
        ([0.5, 0.5, 0.5], 1, [0]),
    ],
)
def test_the_answers_whose_rewards_differ_most(rewards: list[float], num: int, expected: list[int]) -> None:
    assert most_different(rewards, num) == expected
