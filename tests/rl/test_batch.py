import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rl.groups import ME, PEER, group, sampled, spelled, text
from waggle.core.errors import DecodeError
from waggle.core.types import Blob, Completion, Text, Tokens
from waggle.policy.load import load
from waggle.policy.policy import Policy
from waggle.rl.batch import Batch, Example, build


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load("tiny")


def only(policy: Policy, *answers: tuple[Completion, float | None], author: bytes = ME) -> Example:
    (example,) = build([group(*answers, author=author)], policy, ME).examples
    return example


def ids(example: Example) -> list[tuple[int, ...]]:
    return [tuple(map(int, completion)) for completion in example.prompted.completions]


def test_own_tokens_and_log_probabilities_are_used_as_they_are(policy: Policy) -> None:
    (first, second), *_ = (g.rollouts for g in sampled(policy, num=2))
    assert first.completion.tokens is not None
    example = only(policy, (first.completion, 1.0), (second.completion, 0.0))
    assert ids(example)[0] == first.completion.tokens.ids
    assert example.old_N[: example.lengths[0]].tobytes() == first.completion.tokens.logprobs
    assert example.known == (True, True)
    assert tuple(example.prompted.prompt) == policy.encode_prompt(group(author=ME).task.prompt)
    assert example.advantages == (0.5, -0.5)
    assert not example.foreign


@pytest.mark.parametrize("author", [ME, PEER])
def test_text_is_encoded_and_ends_as_it_ended(policy: Policy, author: bytes) -> None:
    example = only(policy, (text("12"), 1.0), (text("12", "length"), 0.0), author=author)
    stopped, cut = ids(example)
    assert stopped == (*cut, policy.stop_ids[0])
    assert policy.decode(cut) == "12"
    assert example.known == (False, False)
    assert not example.old_N.any()
    assert example.foreign == (author == PEER)


def other_tokenizer(policy: Policy) -> Completion:
    return Completion((Text("7"),), "stop", Tokens(b"x" * 32, (1, 2), np.full(2, -1.0, "<f4").tobytes()))


def beyond_vocabulary(policy: Policy) -> Completion:
    return Completion((Text("7"),), "length", Tokens(policy.tokenizer_digest, (policy.vocabulary,)))


def stop_in_the_middle(policy: Policy) -> Completion:
    stop = policy.stop_ids[-1]
    return Completion((Text("7"),), "stop", Tokens(policy.tokenizer_digest, (stop, 50, stop)))


def stop_missing(policy: Policy) -> Completion:
    return Completion((Text("7"),), "stop", Tokens(policy.tokenizer_digest, (50,)))


def stop_too_much(policy: Policy) -> Completion:
    return Completion((Text("7"),), "length", Tokens(policy.tokenizer_digest, (50, policy.stop_ids[0])))


def no_tokens(policy: Policy) -> Completion:
    return Completion((Text("7"),), "stop", Tokens(policy.tokenizer_digest, ()))


@pytest.mark.parametrize(
    "make", [other_tokenizer, beyond_vocabulary, stop_in_the_middle, stop_missing, stop_too_much, no_tokens]
)
def test_ids_that_cannot_be_mine_give_way_to_the_text(policy: Policy, make) -> None:  # type: ignore[no-untyped-def]
    strange = make(policy)
    example = only(policy, (strange, 1.0), (text("8"), 0.0), author=PEER)
    assert ids(example)[0] == policy.encode_text("7", strange.finish)
    assert example.known == (False, False)


def test_any_stop_id_may_end_an_answer(policy: Policy) -> None:
    for stop in policy.stop_ids:
        ended = Completion((Text("7"),), "stop", Tokens(policy.tokenizer_digest, (50, stop)))
        assert ids(only(policy, (ended, 1.0), (text("8"), 0.0)))[0] == (50, stop)


def test_ids_without_log_probabilities_are_used_without(policy: Policy) -> None:
    example = only(policy, (spelled(policy, "7", logprob=None), 1.0), (spelled(policy, "8"), 0.0))
    assert example.known == (False, True)
    assert list(example.old_N) == [0.0] * example.lengths[0] + [-0.5] * example.lengths[1]
    batch = Batch((example,))
    assert (batch.num_tokens, batch.num_foreign_tokens, batch.num_text_tokens) == (4, 0, 2)


def test_the_ungraded_count_neither_in_the_mean_nor_in_the_batch(policy: Policy) -> None:
    example = only(policy, (text("7"), 1.0), (text("8"), None), (text("9"), 0.0))
    assert [policy.decode(i) for i in ids(example)] == ["7", "9"]
    assert example.advantages == (0.5, -0.5)


def test_groups_without_a_signal_are_left_out(policy: Policy) -> None:
    alike = group((text("7"), 1.0), (text("8"), 1.0))
    single = group((text("7"), 1.0), (text("8"), None))
    assert build([alike, single], policy, ME) == Batch()
    assert build([], policy, ME).num_tokens == 0


def test_what_cannot_be_trained_on_is_counted(policy: Policy) -> None:
    picture = Completion((Text("7"), Blob(b"b" * 32, "image/png", 9)), "stop")
    long = text("x" * policy.context)
    batch = build([group((picture, 1.0), (text("", "length"), 0.0), (long, 0.0), (text("9"), 0.0))], policy, ME)
    assert batch.dropped == 3
    assert batch.examples[0].advantages == (-0.25,)
    assert build([group((picture, 1.0), (long, 0.0))], policy, ME) == Batch((), 2)


def test_the_longest_path_that_fits_is_kept(policy: Policy) -> None:
    room = policy.context - len(policy.encode_prompt(group().task.prompt))
    assert only(policy, (text("x" * (room - 1)), 1.0), (text("8"), 0.0)).lengths == (room, 2)
    assert only(policy, (text("x" * room), 1.0), (text("8"), 0.0)).lengths == (2,)


def test_an_empty_answer_that_stopped_is_the_stop_alone(policy: Policy) -> None:
    assert ids(only(policy, (text(""), 1.0), (text("8"), 0.0)))[0] == (policy.stop_ids[0],)


def test_bytes_lead_back_to_the_same_batch(policy: Policy) -> None:
    groups = [*sampled(policy), *sampled(policy, num=3, author=PEER), group((text("7"), 1.0), (text("8"), 0.0))]
    batch = build(groups, policy, ME)
    data = batch.to_bytes()
    again = Batch.from_bytes(data)
    assert again == batch
    assert again.to_bytes() == data
    assert (again.num_tokens, again.num_text_tokens) == (batch.num_tokens, 4)
    assert 0 < again.num_foreign_tokens < again.num_tokens


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_damaged_bytes_are_refused(junk: bytes, at: int) -> None:
    good = Batch((Example(b"1234", b"12345678", (1, 1), b"12345678", (True, False), (0.5, -0.5), False),)).to_bytes()
    with pytest.raises(DecodeError):
        Batch.from_bytes(junk)
    damaged = bytearray(good)
    damaged[at % len(good)] ^= 1 + at % 255
    with contextlib.suppress(DecodeError):
        for example in Batch.from_bytes(bytes(damaged)).examples:
            assert len(example.prompted.completions) == len(example.known)
            assert len(example.per_token(example.advantages)) == len(example.old_N)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": b""},
        {"prompt": b"12345"},
        {"ids": b"1234"},
        {"lengths": (2, 0)},
        {"lengths": (2,)},
        {"known": (True,)},
        {"advantages": (0.5,)},
        {"old": b""},
        {"advantages": (0.5, float("nan"))},
        {"advantages": (0.5, 1e30)},
    ],
)
def test_an_example_that_does_not_add_up_cannot_be_built(change: dict[str, Any]) -> None:
    fields = {"prompt": b"1234", "ids": b"12345678", "lengths": (1, 1), "old": b"12345678"}
    good = {**fields, "known": (True, False), "advantages": (0.5, -0.5), "foreign": False}
    assert Example(**good)
    with pytest.raises(ValueError, match=r"differ in number|bytes|advantage"):
        Example(**{**good, **change})
