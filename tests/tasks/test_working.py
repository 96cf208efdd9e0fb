import pytest

from waggle.tasks import gym
from waggle.tasks.families import family
from waggle.tasks.verdicts import answer_in
from waggle.tasks.working import WORKINGS, spell_and_count, sum_steps


def test_sums_are_worked_term_by_term() -> None:
    item = {"question": "", "answer": "-1", "metadata": {"expression": "3 + 4 - 8"}}
    assert sum_steps(item) == "3 + 4 = 7\n7 - 8 = -1\nAnswer: -1"


def test_words_are_spelled_and_counted() -> None:
    item = {"question": "", "answer": "3", "metadata": {"span": ["Tot", "at"], "target_letter": "t"}}
    assert spell_and_count(item) == "Tot: t o t, 2\nat: a t, 1\nAnswer: 3"


@pytest.mark.parametrize(("style", "env"), [("sum-steps", "chain_sum"), ("spell-and-count", "letter_counting")])
def test_the_last_answer_of_a_working_is_the_truth(style: str, env: str) -> None:
    made = family(env, working=style)
    for index in range(100):
        item = gym.item(made, 3, index)
        assert answer_in(WORKINGS[style](item), made) == item["answer"]
