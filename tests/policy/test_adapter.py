import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from waggle.core.errors import ModelError
from waggle.policy.adapter import attach
from waggle.policy.load import load
from waggle.policy.policy import Policy

IDS = torch.tensor([[5, 6, 7, 80, 90]])


def scores(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=IDS).logits


def disturb(policy: Policy, by: float) -> None:
    with torch.no_grad():
        for _, tensor in policy.parameters():
            tensor.add_(by)


def test_a_fresh_adapter_changes_nothing_and_a_trained_one_does(tiny: Policy) -> None:
    policy = load("tiny", lora_rank=4)
    assert policy.lora
    assert torch.equal(scores(policy), scores(tiny))
    disturb(policy, 0.02)
    assert not torch.allclose(scores(policy), scores(tiny), atol=1e-2)


def test_the_seed_decides_how_an_adapter_starts() -> None:
    first, same, other = (load("tiny:0", lora_rank=4, seed=seed).content_digest() for seed in (1, 1, 2))
    assert first == same != other


def test_a_model_without_fitting_layers_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20))
    with pytest.raises(ModelError, match=r"gpt has no layer that a LoRA adapter fits on .*; set lora_rank = 0"):
        attach(model, 4, 0, "gpt")
