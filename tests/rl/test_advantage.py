import pytest

from waggle.rl.advantage import advantages


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
