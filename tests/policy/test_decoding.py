"""Answers as they grow: whole characters, sequences that end them, and nobody listening any more."""

import pytest

from waggle.core.errors import ModelError
from waggle.core.types import Sampling
from waggle.policy.decoding import Prompt, decode
from waggle.policy.policy import Policy

SAMPLING = Sampling(temperature=1.0, max_tokens=40, seed=5)


def prompt(policy: Policy, *stops: str, max_tokens: int = 40) -> Prompt:
    return Prompt.of_messages(policy, [("user", "letters?")], max_tokens, stops, b"q" * 32)


def test_the_pieces_are_the_answer(tiny: Policy) -> None:
    pieces: list[str] = []
    (answer,) = decode(tiny, prompt(tiny), 1, SAMPLING, lambda piece: pieces.append(piece) or False)  # type: ignore[func-returns-value]
    assert "".join(pieces) == answer.text
    assert len(pieces) > 10
    assert [answer] == decode(tiny, prompt(tiny), 1, SAMPLING)


def test_a_sequence_ends_an_answer_and_is_not_said(tiny: Policy) -> None:
    (whole,) = decode(tiny, prompt(tiny), 1, SAMPLING)
    text = next(whole.text[at : at + 2] for at in range(8, 30) if "\ufffd" not in whole.text[at : at + 2])
    asked, pieces = prompt(tiny, text), list[str]()
    (answer,) = decode(tiny, asked, 1, SAMPLING, lambda piece: pieces.append(piece) or False)  # type: ignore[func-returns-value]
    assert "".join(pieces) == asked.cut(whole.text) == whole.text[: whole.text.index(text)]
    assert answer.tokens is not None
    assert whole.tokens is not None
    assert len(answer.tokens.ids) < len(whole.tokens.ids)
    assert whole.tokens.ids[: len(answer.tokens.ids)] == answer.tokens.ids


def test_every_answer_ends_by_itself(tiny: Policy) -> None:
    whole = decode(tiny, prompt(tiny), 5, SAMPLING)
    letter = next(c for c in whole[2].text if c != "\ufffd")
    asked = prompt(tiny, letter)
    assert [asked.cut(one.text) for one in decode(tiny, asked, 5, SAMPLING)] == [asked.cut(one.text) for one in whole]


def test_where_nobody_listens_nothing_more_is_drawn(tiny: Policy) -> None:
    heard: list[str] = []
    (answer,) = decode(tiny, prompt(tiny), 1, SAMPLING, lambda piece: heard.append(piece) or len(heard) == 3)  # type: ignore[func-returns-value]
    assert answer.tokens is not None
    assert len(answer.tokens.ids) < 12


def test_ids_are_taken_as_they_are(tiny: Policy) -> None:
    ids = prompt(tiny).ids
    asked = Prompt.of_ids(tiny, ids, 8)
    assert asked.ids == ids
    (answer,) = decode(tiny, asked, 1, Sampling(temperature=0, max_tokens=8))
    (other,) = decode(tiny, prompt(tiny, max_tokens=8), 1, Sampling(temperature=0, max_tokens=8))
    assert answer == other
    with pytest.raises(ModelError, match=r"has no token 99999; its ids are below"):
        Prompt.of_ids(tiny, (1, 99999), 8)
    with pytest.raises(ModelError, match=r"reads at most \d+ with the answer; shorten it"):
        Prompt.of_ids(tiny, (1,) * tiny.context, 8)
    assert Prompt.of_ids(tiny, (1,) * (tiny.context - 3), 8).max_tokens == 3
