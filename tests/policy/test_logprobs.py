from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from waggle.core.errors import ModelError
from waggle.core.rng import rng_for
from waggle.policy import logprobs as module
from waggle.policy.load import load
from waggle.policy.logprobs import choose_packing, inner_and_head, logprobs, row_logprobs, verify_packing
from waggle.policy.policy import Policy
from waggle.policy.tree import Prompted, pack

torch.set_num_threads(1)  # tiny tensors: threads only wait for each other


@pytest.fixture
def policy() -> Policy:
    return load("tiny")


def ragged(kind: str) -> list[Prompted]:
    """Groups of unlike sizes and lengths; `shared` ones begin alike."""
    rng = rng_for("ragged", kind)
    prefix = rng.integers(0, 250, 12)
    groups = []
    for lengths in ([3, 1, 7, 3], [5], [2, 2]):
        question = rng.integers(0, 250, 4)
        prompt = np.concatenate((prefix, question)) if kind == "shared" else question
        groups.append(Prompted(prompt.astype(np.int32), [rng.integers(0, 250, n).astype(np.int32) for n in lengths]))
    return groups


def plain(model: Any, groups: list[Prompted], temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle: each completion alone through the whole model; log-probabilities and entropies, [N]."""
    values, entropies = [], []
    for prompt, completions in groups:
        for completion in completions:
            ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
            scores = (model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
            values.append(scores.gather(1, ids[0, len(prompt) :, None])[:, 0])
            entropies.append(-(scores.exp() * scores).sum(-1))
    return torch.cat(values), torch.cat(entropies)


def gradients(model: nn.Module, value: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def weighted(model: nn.Module, groups: list[Prompted], budget: int, packing: Any = "tree") -> torch.Tensor:
    """A sum over all trained tokens, each with a weight of its own."""
    total = torch.zeros(())
    for row in pack(groups, budget, packing):
        values_N, _ = row_logprobs(model, row, 0.7)
        total = total + (values_N * torch.from_numpy(np.cos(row.index_N.astype(np.float32)))).sum()
    return total


@pytest.mark.parametrize("kind", ["shared", "unshared"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [1000, 30])
def test_packed_equals_plain(policy: Policy, kind: str, temperature: float, budget: int) -> None:
    groups = ragged(kind)
    with torch.no_grad():
        found_N = logprobs(policy.model, pack(groups, budget), temperature)
        wanted_N, entropy_N = plain(policy.model, groups, temperature)
        rows = [(row, row_logprobs(policy.model, row, temperature)[1]) for row in pack(groups, budget)]
    np.testing.assert_allclose(found_N, wanted_N.numpy(), atol=1e-5)
    for row, entropies_N in rows:
        np.testing.assert_allclose(entropies_N.numpy(), entropy_N[row.index_N].numpy(), atol=1e-5)


@pytest.mark.parametrize("chunk_bytes", [1, 16 << 20])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_equal_those_of_repeated_prompts(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, tied: bool
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    model, groups = policy.model, ragged("shared")
    if not tied:
        model.lm_head = nn.Linear(64, policy.vocabulary)
    weights_N = torch.cos(torch.arange(23, dtype=torch.float32))
    wanted = gradients(model, (plain(model, groups, 0.7)[0] * weights_N).sum())
    assert "lm_head.bias" in wanted or tied
    for found in (
        gradients(model, weighted(model, groups, 1000)),
        gradients(model, weighted(model, groups, 30)),
        gradients(model, weighted(model, groups, 1000, "plain")),
    ):
        assert found.keys() == wanted.keys()
        for name, grad in wanted.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-5)


def test_logits_are_never_held_for_more_than_a_chunk(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = module._logits
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module, "_logits", lambda hidden, head: sizes.append(len(hidden)) or real(hidden, head))
    (row,) = pack([Prompted([1, 2], [list(range(100, 140))])], 1000)
    row_logprobs(policy.model, row)[0].sum().backward()
    assert sizes == [16, 16, 8, 8, 16, 16]


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    policy = load("tiny", lora_rank=2)
    weighted(policy.model, ragged("shared"), 1000).backward()
    assert {name for name, p in policy.model.named_parameters() if p.grad is not None} == dict(
        policy.parameters()
    ).keys()
    assert policy.model.lm_head.weight.grad is None


def test_a_peft_wrapper_is_seen_through() -> None:
    policy = load("tiny", lora_rank=2)
    assert inner_and_head(policy.adapter) == inner_and_head(policy.model)


@pytest.mark.parametrize("name", ["tiny", "tiny-b"])
def test_the_bundled_models_compute_trees(name: str) -> None:
    policy = load(name)
    verify_packing(policy)
    assert choose_packing(policy) == "tree"


def blind(model: Any, **fixed: Any) -> Any:
    """The model with some arguments of its inner module overruled."""
    forward = model.model.forward
    model.model.forward = lambda **given: forward(**{**given, **fixed})
    return model


@pytest.mark.parametrize("fixed", [{"attention_mask": None}, {"position_ids": None}])
def test_a_model_that_does_not_obey_is_found_out_and_falls_back_to_plain(policy: Policy, fixed: dict[str, Any]) -> None:
    blind(policy.model, **fixed)
    with pytest.raises(ModelError, match=r"llama with sdpa attention gives .* differ by .* nats"):
        verify_packing(policy)
    assert choose_packing(policy) == "plain"


def test_a_model_that_refuses_a_mask_falls_back_to_plain(policy: Policy) -> None:
    forward = policy.model.model.forward

    def picky(**given: Any) -> Any:
        if given["attention_mask"] is not None and given["attention_mask"].dim() == 4:
            raise ValueError("only [B, T] masks")
        return forward(**given)

    policy.model.model.forward = picky
    with pytest.raises(ModelError, match="differ by inf nats"):
        verify_packing(policy)
    assert choose_packing(policy) == "plain"


def gemma() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=0.5, initializer_range=0.3)).eval()


def test_logits_that_are_squashed_afterwards_are_refused() -> None:
    with pytest.raises(ModelError, match=r"gemma2 .* plain-packed"):
        choose_packing(SimpleNamespace(model=gemma()))


def test_an_output_layer_that_is_not_a_matrix_is_refused(policy: Policy) -> None:
    policy.model.lm_head = nn.Sequential(policy.model.lm_head)
    with pytest.raises(ModelError, match="Sequential, which cannot be scored"):
        inner_and_head(policy.model)


def test_bfloat16_keeps_log_probabilities_in_float32(policy: Policy) -> None:
    groups = ragged("shared")
    (row,) = pack(groups, 1000)
    with torch.autocast("cpu", torch.bfloat16):
        found_N, entropy_N = row_logprobs(policy.model, row)
    found_N.sum().backward()
    assert (found_N.dtype, entropy_N.dtype) == (torch.float32, torch.float32)
    wanted_N = logprobs(policy.model, [row])[row.index_N]
    assert 1e-5 < np.abs(found_N.detach().numpy() - wanted_N).max() < 0.3
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in policy.model.parameters())
