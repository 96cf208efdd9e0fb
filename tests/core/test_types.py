"""The rules that the nouns themselves keep."""

import numpy as np
import pytest

from waggle.core.codec import decode, encode
from waggle.core.errors import DecodeError
from waggle.core.types import (
    Blob,
    Completion,
    Group,
    Message,
    PolicyRef,
    Rollout,
    Sampling,
    Task,
    TaskRef,
    Text,
    Tokens,
    Verdict,
)

REF = TaskRef("chain_sum", b"c" * 32, 5, 0, 17)
TASK = Task(REF, (Message("user", "3 + 4 ="),), "reasoning-gym", "7", b"q" * 32, 8)
TOKENIZER = b"t" * 32


def logprobs(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


@pytest.mark.parametrize("values", [(float("nan"),), (float("inf"),), (float("-inf"),), (0.5,), (-0.1, 0.002)])
def test_implausible_logprobs_cannot_be_built(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="not a finite number of at most 0"):
        Tokens(TOKENIZER, tuple(range(len(values))), logprobs(*values))


@pytest.mark.parametrize("given", [b"x", logprobs(-1.0), logprobs(-1.0, -1.0, -1.0)])
def test_there_are_four_bytes_of_logprob_an_id(given: bytes) -> None:
    with pytest.raises(ValueError, match="4 bytes an id"):
        Tokens(TOKENIZER, (1, 2), given)


def test_logprobs_are_float32_nats_or_kept_back() -> None:
    tokens = Tokens(TOKENIZER, (28, 2), logprobs(-0.5, 0.0))
    assert decode(Tokens, encode(tokens)).logprobs_T.tolist() == [-0.5, 0.0]
    assert Tokens(TOKENIZER, (28, 2)).logprobs_T.shape == (0,)


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(-0.1, 1.0), (1.0, 0.0), (1.0, 1.1), (float("nan"), 1.0), (1.0, float("nan"))]
)
def test_sampling_out_of_range_cannot_be_built(temperature: float, top_p: float) -> None:
    with pytest.raises(ValueError, match=r"temperature=|top_p="):
        Sampling(temperature, top_p)


def test_not_graded_is_not_wrong() -> None:
    assert Verdict(None).reward is None
    assert Verdict(0.0).reward == 0.0
    with pytest.raises(ValueError, match="finite"):
        Verdict(float("nan"))
    with pytest.raises(ValueError, match="finite"):
        Verdict(1.0, {"form": float("inf")})


def test_the_text_of_a_completion_is_its_text_parts() -> None:
    picture = Blob(b"d" * 32, "image/png", 8192)
    assert Completion((Text("a"), picture, Text("b")), "stop").text == "ab"
    assert decode(Completion, encode(Completion((picture,), "length"))).parts == (picture,)


def test_finish_is_stop_or_length() -> None:
    with pytest.raises(DecodeError, match="Invalid enum value"):
        decode(Completion, encode(Completion((), "because")))  # type: ignore[arg-type]


def group(*rewards: float | None) -> Group:
    rollouts = tuple(Rollout(Completion((Text("7"),), "stop"), Verdict(reward)) for reward in rewards)
    return Group(TASK, PolicyRef("m", b"w" * 32, 0), Sampling(), rollouts, b"a" * 32, 0, b"i" * 32)


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ((0.0, 1.0), True),
        ((1.0, 1.0, 0.5), True),
        ((1.0, 1.0), False),
        ((0.0, None), False),
        ((None, None), False),
        ((1.0, None, 0.0), True),
        ((0.5, 0.5 + 1e-9), False),
        ((), False),
    ],
)
def test_a_signal_is_a_difference_between_graded_answers(rewards: tuple[float | None, ...], signal: bool) -> None:
    made = group(*rewards)
    assert made.has_signal is signal
    assert made.rewards == tuple(reward for reward in rewards if reward is not None)


def test_nouns_cannot_change() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        REF.index = 3  # type: ignore[misc]
