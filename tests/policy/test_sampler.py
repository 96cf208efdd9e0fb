import dataclasses

import numpy as np
import pytest
import torch
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.policy.parts import ask, bundled_policy, generated, plain_logprobs, ragged
from waggle.core.errors import ModelError
from waggle.core.types import Completion, Sampling, Task
from waggle.policy import sampler
from waggle.policy.load import load
from waggle.policy.policy import Policy
from waggle.policy.sampler import draw, generate

GREEDY = Sampling(temperature=0, max_tokens=64)


def ids_of(answers: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[c.tokens.ids for c in row if c.tokens] for row in answers]


def with_stops(policy: Policy, *ids: int) -> Policy:
    """The same model where other ids end an answer."""
    changed = dataclasses.replace(policy)
    changed.stop_ids = ids
    return changed


def passes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Records the shape of every forward pass."""
    shapes: list[tuple[int, int]] = []
    forward = sampler._forward

    def noted(policy: Policy, ids_BR: torch.Tensor, *rest: object) -> torch.Tensor:
        shapes.append(tuple(ids_BR.shape))
        return forward(policy, ids_BR, *rest)

    monkeypatch.setattr(sampler, "_forward", noted)
    return shapes


@pytest.mark.parametrize("name", ["tiny", "tiny-b"])
def test_greedy_decoding_equals_generate(name: str) -> None:
    policy = load(name)
    answers = ids_of(generate(policy, ragged(), 2, GREEDY))
    assert answers == [[generated(policy, task)] * 2 for task in ragged()]
    assert len({len(row[0]) for row in answers}) > 1, "answers of one length show little"


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_logprobs_are_those_of_one_plain_row(tiny: Policy, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, max_tokens=30, seed=3)
    answers = generate(tiny, ragged(), 8, sampling)
    assert {c.finish for row in answers for c in row} == {"stop", "length"}
    for task, row in zip(ragged(), answers, strict=True):
        for answer in row:
            expected = plain_logprobs(tiny, task, answer, temperature)
            np.testing.assert_allclose(answer.tokens.logprobs_T, expected, atol=1e-4, rtol=0)


def test_greedy_records_the_logprob_at_temperature_one(tiny: Policy) -> None:
    task = ask("3 + 4 =")
    [[answer]] = generate(tiny, [task], 1, GREEDY)
    np.testing.assert_allclose(answer.tokens.logprobs_T, plain_logprobs(tiny, task, answer), atol=1e-4, rtol=0)


def test_an_answer_does_not_depend_on_its_batch(tiny: Policy) -> None:
    tasks, sampling = ragged(), Sampling(max_tokens=40, seed=7)
    together = ids_of(generate(tiny, tasks, 4, sampling))
    reversed_ = ids_of(generate(tiny, tasks[::-1], 4, sampling))[::-1]
    alone = [ids_of(generate(tiny, [task], 4, sampling))[0] for task in tasks]
    fewer = [row[:2] for row in together]
    small = dataclasses.replace(tiny, kv_bytes=200_000)
    assert together == reversed_ == alone == ids_of(generate(small, tasks, 4, sampling))
    assert fewer == ids_of(generate(tiny, tasks, 2, sampling))


def test_small_memory_means_small_batches(tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = passes(tiny, monkeypatch)
    generate(dataclasses.replace(tiny, kv_bytes=1), [ask("3 + 4 =")], 3, Sampling(max_tokens=4))
    assert max(rows for rows, _ in shapes) == 1
    shapes.clear()
    generate(tiny, [ask("3 + 4 =")], 3, Sampling(max_tokens=4))
    assert max(rows for rows, _ in shapes) == 3


def test_seeds_questions_and_numbers_give_different_answers(tiny: Policy) -> None:
    task = ask("3 + 4 =", max_tokens=12)
    first, second = (ids_of(generate(tiny, [task], 3, Sampling(seed=seed)))[0] for seed in (1, 2))
    assert len({*first, *second}) == 6
    assert ids_of(generate(tiny, [task, task], 3, Sampling(seed=1))) == [first, first]


def test_what_prompts_share_is_computed_once(tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = passes(tiny, monkeypatch)
    tasks = [ask("3 + 4 ="), ask("3 + 5 ="), ask("9 + 1 =")]
    generate(tiny, tasks, 5, Sampling(max_tokens=1))
    lengths = [len(tiny.encode_prompt(task.prompt)) for task in tasks]
    prefix, rest = shapes
    assert prefix[0] == 1
    assert prefix[1] > 0.7 * min(lengths)
    assert rest == (3, max(lengths) - prefix[1])


def test_rows_that_ended_leave_the_batch(tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = passes(tiny, monkeypatch)
    generate(with_stops(tiny, *range(150)), [ask("3 + 4 =", max_tokens=40)], 16, Sampling(seed=1))
    rows = [rows for rows, width in shapes[1:] if width == 1]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] <= 16
    assert rows[-1] <= 4


def test_many_prompts_are_computed_in_bounded_passes(tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = passes(tiny, monkeypatch)
    generate(tiny, [ask(f"{i} + {i} =", shots=()) for i in range(60)], 1, Sampling(max_tokens=1))
    assert all(rows * width <= sampler._PREFILL_TOKENS for rows, width in shapes)
    assert sum(rows for rows, width in shapes if width > 1) >= 60


def test_limits_of_task_sampling_and_context_hold(tiny: Policy) -> None:
    never = with_stops(tiny, 10**6)
    tasks = [ask("3 + 4 =", max_tokens=3), ask("1 + 1 =", max_tokens=9)]
    assert [len(c.tokens.ids) for [c] in generate(never, tasks, 1, Sampling(max_tokens=6))] == [3, 6]
    room = len(tiny.encode_prompt(tasks[1].prompt))
    for context, expected in [(room + 4, 4), (room + 1, 1)]:
        never.model.config.max_position_embeddings, before = context, never.model.config.max_position_embeddings
        try:
            [[answer]] = generate(never, tasks[1:], 1, Sampling(max_tokens=6))
        finally:
            never.model.config.max_position_embeddings = before
        assert (len(answer.tokens.ids), answer.finish) == (expected, "length")


def test_a_prompt_without_room_is_refused(tiny: Policy) -> None:
    task = ask("x" * 9000)
    with pytest.raises(ModelError, match="reads at most 8192 with the answer; use fewer shots"):
        generate(tiny, [task], 1, Sampling())


def test_every_stop_id_ends_an_answer_and_is_its_last_id(tiny: Policy) -> None:
    stops = (2, 70, 90, 120, 200)
    answers = generate(with_stops(tiny, *stops), [ask("3 + 4 =", max_tokens=300)], 24, Sampling(max_tokens=300, seed=1))
    seen = set()
    for [*body, last] in ids_of(answers)[0]:
        assert not set(body) & set(stops)
        seen.add(last)
    assert seen <= set(stops)
    assert len(seen) >= 3


def test_the_id_that_ends_an_answer_is_kept_and_its_text_is_not(tiny: Policy) -> None:
    answers = generate(tiny, [ask("3 + 4 =", max_tokens=400)], 8, Sampling(max_tokens=400, seed=1))[0]
    ended = [answer for answer in answers if answer.finish == "stop"]
    assert ended
    for answer in ended:
        assert answer.tokens.ids[-1] in tiny.stop_ids
        assert answer.text == tiny.decode(answer.tokens.ids[:-1])
        assert answer.tokens.tokenizer == tiny.tokenizer_digest


def test_a_pad_id_that_also_ends_answers_changes_nothing(tiny: Policy) -> None:
    assert tiny.tokenizer.pad_token_id == tiny.stop_ids[0]
    other = load("tiny")
    other.tokenizer.pad_token_id = other.model.config.pad_token_id = 9
    other.model.get_input_embeddings().padding_idx = 9
    sampling = Sampling(max_tokens=40, seed=2)
    assert ids_of(generate(other, ragged(), 3, sampling)) == ids_of(generate(tiny, ragged(), 3, sampling))


def test_an_adapter_is_sampled_with(tiny: Policy) -> None:
    policy = load("tiny", lora_rank=4)
    with torch.no_grad():
        for _, tensor in policy.parameters():
            tensor.add_(0.02)
    task = ask("3 + 4 =")
    [[answer]] = generate(policy, [task], 1, Sampling(seed=1))
    np.testing.assert_allclose(answer.tokens.logprobs_T, plain_logprobs(policy, task, answer), atol=1e-4, rtol=0)
    assert np.abs(answer.tokens.logprobs_T - plain_logprobs(tiny, task, answer)).max() > 1e-2


def test_bfloat16_answers(tiny: Policy) -> None:
    policy = load("tiny", precision="bfloat16")
    answers = generate(policy, ragged(), 2, Sampling(max_tokens=8, seed=1))
    for task, row in zip(ragged(), answers, strict=True):
        for answer in row:
            np.testing.assert_allclose(answer.tokens.logprobs_T, plain_logprobs(tiny, task, answer), atol=0.3, rtol=0)


def test_scores_that_are_not_numbers_are_an_error() -> None:
    policy = load("tiny")
    with torch.no_grad():
        policy.model.model.norm.weight[0] = torch.nan
    with pytest.raises(ModelError, match="tiny gives scores that are not numbers"):
        generate(policy, [ask("3 + 4 =")], 1, Sampling())


def test_nothing_to_do(tiny: Policy) -> None:
    assert generate(tiny, [], 3, Sampling()) == []
    assert generate(tiny, [ask("3 + 4 =")], 0, Sampling()) == [[]]


def reference(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that transformers samples from."""
    scores_1V = TemperatureLogitsWarper(sampling.temperature)(None, logits_V[None])
    if sampling.top_k:
        scores_1V = TopKLogitsWarper(sampling.top_k)(None, scores_1V)
    if sampling.top_p < 1:
        scores_1V = TopPLogitsWarper(sampling.top_p)(None, scores_1V)
    return scores_1V.softmax(-1)[0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=1.7),
        Sampling(top_k=3),
        Sampling(top_k=500),
        Sampling(top_p=0.6),
        Sampling(top_p=0.01),
        Sampling(temperature=1.5, top_k=7, top_p=0.8),
    ],
)
def test_ids_are_drawn_from_the_distribution_that_transformers_defines(sampling: Sampling) -> None:
    logits_V = torch.randn(23, generator=torch.Generator().manual_seed(5)) * 2
    num = 20_000
    chosen, logprobs = draw(logits_V.expand(num, -1), sampling, (torch.arange(num) + 0.5) / num)
    frequency_V = torch.bincount(chosen, minlength=23) / num
    torch.testing.assert_close(frequency_V, reference(logits_V, sampling), atol=2 / num, rtol=0)
    whole_V = (logits_V / sampling.temperature).log_softmax(-1)
    torch.testing.assert_close(logprobs, whole_V[chosen])


def test_an_id_of_probability_zero_is_never_drawn() -> None:
    logits_BV = torch.full((2, 49152), -torch.inf)
    logits_BV[:, [7, 4000]] = torch.tensor([0.1, 0.2])
    ends = torch.tensor([0.0, sampler._LAST_UNIFORM])
    assert draw(logits_BV, Sampling(), ends)[0].tolist() == [7, 4000]
    assert draw(logits_BV, Sampling(top_k=1), ends)[0].tolist() == [4000, 4000]


def tasks_of_bundled() -> list[Task]:
    return [ask("3 + 4 ="), ask("12 + 30 + 4 ="), ask("What is the capital of France?", "words", (), 16)]


@pytest.mark.slow
def test_the_bundled_model_decodes_as_generate_and_scores_as_plain_rows() -> None:
    policy = bundled_policy()
    assert ids_of(generate(policy, tasks_of_bundled(), 1, GREEDY)) == [
        [generated(policy, t)] for t in tasks_of_bundled()
    ]
    answers = generate(policy, tasks_of_bundled(), 3, Sampling(max_tokens=8, seed=1))
    for task, row in zip(tasks_of_bundled(), answers, strict=True):
        for answer in row:
            expected = plain_logprobs(policy, task, answer)
            np.testing.assert_allclose(answer.tokens.logprobs_T, expected, atol=1e-4, rtol=0)
    assert "Paris" in generate(policy, tasks_of_bundled()[2:], 1, GREEDY)[0][0].text
