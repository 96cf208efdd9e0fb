"""The likelihood window: which foreign answers teach nothing."""

import numpy as np

from waggle.rl.window import SPAN, unlikely


def mask(*answers: list[float], limit: float = 4.0) -> list[list[bool]]:
    lengths = [len(answer) for answer in answers]
    logprobs_N = np.array([value for answer in answers for value in answer], np.float32)
    found_N = unlikely(logprobs_N, np.repeat(np.arange(len(answers), dtype=np.int32), lengths), limit)
    return [part.tolist() for part in np.split(found_N, np.cumsum(lengths)[:-1])]


def test_a_stretch_that_i_would_not_say_costs_the_whole_answer_and_no_other() -> None:
    planted = [-0.1] * 10 + [-6.0] * SPAN + [-0.1] * 10
    clean = [-0.1] * 12
    assert mask(clean, planted, clean) == [[False] * 12, [True] * 28, [False] * 12]


def test_a_rare_beginning_passes() -> None:
    assert mask([-9.0, -4.0] + [-0.2] * 10) == [[False] * 12]


def test_a_short_answer_is_one_stretch() -> None:
    assert mask([-5.0, -5.0], [-5.0, -1.0]) == [[True] * 2, [False] * 2]


def test_nothing_is_nothing() -> None:
    assert unlikely(np.empty(0, np.float32), np.empty(0, np.int32), 4.0).tolist() == []
