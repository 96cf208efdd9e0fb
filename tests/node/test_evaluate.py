"""Evaluation: intervals against known numbers, answers that could not be graded left out, equal models equal."""

import itertools
from collections.abc import Sequence

import pytest

from tests.node.parts import config, scripted_swarm
from waggle.core.types import Completion, Message, Sampling, Task, TaskRef, Text, Tokens, Verdict
from waggle.node.evaluate import FamilyScore, Outcome, Score, ask, evaluate, scores, wilson
from waggle.node.node import Node
from waggle.node.scripted import ScriptedLearner
from waggle.tasks.families import family

ONE, TWO = b"1" * 32, b"2" * 32
LABELS = {ONE: "one", TWO: "two"}


@pytest.mark.parametrize(
    ("correct", "asked", "low", "high"),
    [  # R: prop.test(x, n, correct=FALSE), binom.confint(method="wilson")
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (1, 20, 0.0089, 0.2361),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, example (a)
        (15, 148, 0.0624, 0.1605),  # (b)
        (0, 20, 0.0, 0.1611),  # (c)
        (1, 29, 0.0061, 0.1718),  # (d)
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_are_wilsons(correct: int, asked: int, low: float, high: float) -> None:
    assert wilson(correct, asked) == pytest.approx((low, high), abs=5e-5)
    assert FamilyScore("x", asked + 3, correct, 3).interval == wilson(correct, asked)


@pytest.mark.parametrize("asked", [1, 2, 7, 300])
def test_an_interval_lies_in_bounds_around_its_rate(asked: int) -> None:
    for correct in range(asked + 1):
        low, high = wilson(correct, asked)
        assert 0 <= low <= correct / asked + 1e-12
        assert correct / asked - 1e-12 <= high <= 1
        assert wilson(asked - correct, asked) == pytest.approx((1 - high, 1 - low))


def tasks() -> list[Task]:
    """Three questions of the first family and two of the second."""
    configs = (ONE, TWO, ONE, TWO, ONE)
    return [
        Task(TaskRef("env", c, 0, 0, i), (Message("user", f"{i}?"),), "exact", str(i), bytes([i]) * 32, 4)
        for i, c in enumerate(configs)
    ]


class Canned:
    """A grader that says what it was told to say."""

    def __init__(self, *rewards: float | None) -> None:
        self.rewards = rewards
        self.asked: list[str] = []

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        self.asked = [text for _, text in items]
        return [Verdict(reward) for reward in self.rewards]


def answers(asked: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
    return [[Completion((Text(task.truth),), "stop", Tokens(b"t" * 32, (1, 2)))] * num for task in asked]


def test_scores_are_by_family_and_leave_out_what_could_not_be_graded() -> None:
    grader = Canned(1.0, 0.0, None, 0.5, 0.0)
    score = evaluate(answers, grader, tasks(), LABELS, 7, 1.0)
    one, two = FamilyScore("one", 3, 1.0, 1, 2 / 3, 2.0), FamilyScore("two", 2, 0.5, 0, 1.0, 2.0)
    assert score == Score(7, (one, two), 10)
    assert grader.asked == ["0", "1", "2", "3", "4"]
    assert [f.rate for f in score.families] == [0.5, 0.25]
    assert score.over() == FamilyScore("all", 5, 1.5, 1, 2 / 3 + 1.0, 4.0)
    assert score.over(["two"]).rate == 0.25
    assert score.over().rate == 1.5 / 4


def test_nothing_that_could_be_graded_is_no_division_by_zero() -> None:
    score = evaluate(answers, Canned(*[None] * 5), tasks(), LABELS, 0, 1.0)
    assert (score.over().rate, score.over().interval) == (0.0, (0.0, 1.0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_evaluation_asks_with_the_same_numbers(temperature: float) -> None:
    seen: list[Sampling] = []

    def spying(asked: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        seen.append(sampling)
        return answers(asked, num, sampling)

    for number in (0, 9):
        evaluate(spying, Canned(*[1.0] * 5), tasks(), LABELS, number, temperature)
    assert seen[0] == seen[1]
    assert seen[0].temperature == temperature


def test_the_same_model_answers_the_same_on_any_node_and_at_any_round() -> None:
    sums = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)
    settings = config("model.name=scripted", "eval.report=60")
    learners = [ScriptedLearner(0.4, 0.01, 3), ScriptedLearner(0.4, 0.01, 3), ScriptedLearner(0.7, 0.01, 3)]
    nodes = scripted_swarm((sums,), 3, settings, learners=learners)

    def score(node: Node) -> FamilyScore:
        return node.report().over()

    assert score(nodes[0]) == score(nodes[0]) == score(nodes[1])
    assert 0.2 < score(nodes[0]).rate < score(nodes[2]).rate < 1  # paired: the better one is right where the other is
    questions = {task.question for task in nodes[0].taskset.heldout("report", 60)}
    assert not questions & {task.question for task in nodes[0].taskset.heldout("steer", 6)}


def test_questions_count_as_often_as_they_are_drawn_and_the_interval_knows_it() -> None:
    score = evaluate(answers, Canned(1.0, 0.0, 0.0, 1.0, 0.0), tasks(), LABELS, 0, 1.0, times=(4, 1, 1, 1, 1))
    one, two = score.families
    assert one.rate == pytest.approx(4 / 6)
    assert one.squares == pytest.approx(18 / 4)  # counts 2, 0.5, 0.5: as much is known as from two questions
    assert one.interval == pytest.approx(wilson(2 * 4 / 6, 2))
    assert two == FamilyScore("two", 2, 1.0, 0, 1.0, 2.0)
    assert score.over().rate == pytest.approx((3 * 4 / 6 + 1.0) / 5)


@pytest.mark.parametrize(("num", "right"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 3), (4, 4), (6, 2)])
def test_pass_at_k_is_the_share_of_choices_that_hold_a_right_answer(num: int, right: int) -> None:
    rewards = (1.0,) * right + (0.5,) * (num - right)
    outcome = Outcome(ONE, "x", "", 1, rewards)
    for k in range(2, num + 1):
        choices = list(itertools.combinations(rewards, k))
        expected = sum(1.0 in choice for choice in choices) / len(choices)
        assert scores([outcome], k)[0].rate == pytest.approx(expected)
    assert scores([outcome])[0].rate == pytest.approx(sum(rewards) / num)


def test_every_question_is_asked_as_often_as_wanted() -> None:
    outcomes, tokens = ask(answers, Canned(*[1.0, None] * 5), tasks(), LABELS, 2, 1.0)
    assert [one.rewards for one in outcomes] == [(1.0, None)] * 5
    assert [one.graded for one in outcomes] == [[1.0]] * 5
    assert [(score.family, score.rate, score.graded) for score in scores(outcomes)] == [("one", 1, 3), ("two", 1, 2)]
    assert tokens == 20
