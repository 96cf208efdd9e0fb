from collections import Counter

import pytest

from waggle.tasks import gym
from waggle.tasks.families import family
from waggle.tasks.questions import bucket, question_digest

SUM = family("chain_sum")


def item(question: str, **facts: object) -> gym.Item:
    return {"question": question, "answer": "7", "metadata": facts}


def test_other_wording_is_the_same_question() -> None:
    first = question_digest(SUM, item("What is 3 + 4?", expression="3 + 4"))
    second = question_digest(SUM, item("State the final answer: 3 + 4 =", expression="3 + 4"))
    other = question_digest(SUM, item("What is 3 + 5?", expression="3 + 5"))
    assert first == second != other


def test_golden_digest() -> None:
    """A change of this number is a change of what every swarm holds out: raise the protocol version."""
    golden = "c67d0dbba1ed52f332b6e755a8e29948a97aab645e31ed00f48f2a30beca2873"
    assert question_digest(SUM, gym.item(SUM, 7, 0)).hex() == golden


def test_an_expression_is_the_same_question_in_every_environment_and_configuration() -> None:
    made = item("Calculate 3 + 4.", expression="3 + 4")
    families = (SUM, family("chain_sum", {"max_terms": 9}), family("basic_arithmetic"))
    assert len({question_digest(f, made) for f in families}) == 1


@pytest.mark.parametrize(
    ("env", "config"),
    [
        ("basic_arithmetic", {"format_style": "natural", "min_terms": 2, "max_terms": 2, "max_digits": 1}),
        ("simple_equations", {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 3}),
        ("fraction_simplification", {"min_value": 1, "max_value": 4, "min_factor": 2, "max_factor": 3}),
        ("aiw", {}),
        ("figlet_font", {"static_word": "BEE", "static_font": "3-d"}),
        ("simple_integration", {"min_terms": 2, "max_terms": 2, "max_degree": 1, "min_degree": 1, "max_bounds": 2}),
    ],
)
def test_wordings_of_real_environments_do_not_leak(env: str, config: dict[str, object]) -> None:
    words = family(env, config)
    texts: dict[bytes, set[str]] = {}
    for index in range(600):
        made = gym.item(words, 5, index)
        texts.setdefault(question_digest(words, made), set()).add(made["question"])
    assert max(len(wordings) for wordings in texts.values()) > 1, "this configuration shows no second wording"


def test_every_environment_has_a_digest_that_tells_questions_apart() -> None:
    for env in ("advanced_geometry", "calendar_arithmetic", "family_relationships", "survo", "time_intervals"):
        plain = family(env)
        digests = {question_digest(plain, gym.item(plain, 1, index)) for index in range(30)}
        assert len(digests) > 25, env


def test_spacing_and_case_of_plain_questions_do_not_matter() -> None:
    plain = family("letter_counting")
    assert question_digest(plain, item("How many  e in Bee?")) == question_digest(plain, item("how many e in bee?"))


def test_buckets_have_their_shares() -> None:
    counts = Counter(bucket(number.to_bytes(32, "big")) for number in range(20_000))
    shares = {name: count / 20_000 for name, count in counts.items()}
    assert shares == pytest.approx({"train": 0.75, "steer": 0.10, "report": 0.10, "shots": 0.05}, abs=0.01)
