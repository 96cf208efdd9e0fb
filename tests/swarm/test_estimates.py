"""A running estimate of my own success, by family and difficulty."""

import pytest

from tests.swarm.world import ME, group, replace
from waggle.swarm.estimates import FADE, Estimates, bin_of


def test_before_the_first_answer_the_rate_is_zero() -> None:
    assert Estimates().rate(group(0).task) == 0.0


def test_the_rate_is_that_of_my_rewards_and_the_past_fades() -> None:
    estimates = Estimates()
    estimates.learn([group(0, (1.0, 1.0, 0.0, 0.0), ME.id)])
    assert estimates.rate(group(1).task) == pytest.approx(0.5)
    for number in range(60):
        estimates.learn([group(number, (1.0, 1.0), ME.id)])
    assert estimates.rate(group(1).task) > 1 - FADE**50
    only = estimates.state()[0]
    assert only.answers < 2 / (1 - FADE)


def test_what_could_not_be_graded_does_not_count() -> None:
    estimates = Estimates()
    estimates.learn([group(0, (1.0, None, None, None), ME.id)])
    assert estimates.rate(group(1).task) == 1.0


def test_a_difficulty_that_was_never_seen_leans_on_its_family_and_one_that_was_on_itself() -> None:
    easy = group(0, (1.0,) * 40, ME.id)
    hard = replace(easy, task=replace(easy.task, truth="12345678"), rollouts=group(0, (0.0,) * 40).rollouts)
    estimates = Estimates()
    estimates.learn([easy])
    assert estimates.rate(hard.task) == 1.0
    estimates.learn([hard])
    assert estimates.rate(hard.task) < 0.15
    assert estimates.rate(easy.task) > 0.85
    assert bin_of(hard.task) != bin_of(easy.task)


def test_other_families_play_no_part() -> None:
    estimates, mine = Estimates(), group(0, (1.0,), ME.id)
    estimates.learn([mine])
    other = replace(mine.task, ref=replace(mine.task.ref, config=b"o" * 32))
    assert estimates.rate(other) == 0.0


def test_state_restores() -> None:
    estimates = Estimates()
    estimates.learn([group(0, (1.0, 0.0), ME.id)])
    again = Estimates(estimates.state())
    assert again.state() == estimates.state()
    assert again.rate(group(0).task) == estimates.rate(group(0).task)
