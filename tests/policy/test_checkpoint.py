import hashlib
import json
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from waggle.core.errors import ModelError
from waggle.policy.checkpoint import load_weights, save_model, save_weights
from waggle.policy.load import load
from waggle.policy.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
IDS = torch.tensor([[5, 6, 7, 80, 90]])


def scores(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def disturbed(policy: Policy) -> Policy:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, tensor in policy.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.02)
    return policy


def untied(folder: Path) -> Policy:
    """A tiny model whose output layer has weights of its own."""
    policy = load("tiny")
    save_model(policy, folder)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 0.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return load(str(folder))


def test_a_saved_model_scores_as_before(tmp_path: Path) -> None:
    policy = disturbed(load("tiny"))
    save_model(policy, tmp_path / "model")
    assert sorted(load_file(tmp_path / "model" / "model.safetensors")) == sorted(n for n, _ in policy.parameters())
    assert torch.equal(scores(AutoModelForCausalLM.from_pretrained(tmp_path / "model")), scores(policy.model))
    again = load(str(tmp_path / "model"))
    assert (again.content_digest(), again.tokenizer_digest, again.stop_ids, again.name) == (
        policy.content_digest(),
        policy.tokenizer_digest,
        policy.stop_ids,
        "model",
    )
    text = AutoTokenizer.from_pretrained(tmp_path / "model").decode(policy.encode_text("3 + 4", "length"))
    assert text == "3 + 4"


def test_weights_that_are_not_tied_stay_apart(tmp_path: Path) -> None:
    policy = disturbed(untied(tmp_path / "untied"))
    assert "lm_head.weight" in dict(policy.parameters())
    save_model(policy, tmp_path / "again")
    assert torch.equal(scores(AutoModelForCausalLM.from_pretrained(tmp_path / "again")), scores(policy.model))


def test_an_adapter_is_saved_alone_and_scores_as_before(tmp_path: Path) -> None:
    policy = disturbed(load("tiny", lora_rank=4))
    save_model(policy, tmp_path / "adapter")
    assert sum(f.stat().st_size for f in (tmp_path / "adapter").glob("*.safetensors")) < 100_000
    again = load(str(tmp_path / "adapter"))
    assert again.lora
    assert torch.equal(scores(again.model), scores(policy.model))
    assert [n for n, p in again.parameters()] == [n for n, p in policy.parameters()]
    base = load("tiny").model
    assert torch.equal(scores(peft.PeftModel.from_pretrained(base, tmp_path / "adapter")), scores(policy.model))


def test_transformers_finds_the_base_of_an_adapter(tmp_path: Path) -> None:
    save_model(load("tiny"), tmp_path / "base")
    policy = disturbed(load(str(tmp_path / "base"), lora_rank=4))
    save_model(policy, tmp_path / "adapter")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(scores(found), scores(policy.model))


def test_saving_over_the_files_that_weights_are_mapped_from(tmp_path: Path) -> None:
    save_model(load("tiny"), tmp_path)
    policy = disturbed(load(str(tmp_path)))
    expected = scores(policy.model)
    save_model(policy, tmp_path)
    assert torch.equal(scores(policy.model), expected)
    assert torch.equal(scores(load(str(tmp_path)).model), expected)
    assert not [*tmp_path.glob(".*")]


def test_training_does_not_write_to_the_file_it_was_loaded_from(tmp_path: Path) -> None:
    save_model(load("tiny"), tmp_path)
    before = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).digest()
    disturbed(load(str(tmp_path)))
    assert hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).digest() == before


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_are_put_back(tmp_path: Path, rank: int) -> None:
    policy = disturbed(load("tiny", lora_rank=rank))
    save_weights(policy, tmp_path / "w.safetensors")
    again = load("tiny", lora_rank=rank, seed=3) if rank == 0 else load("tiny:0", lora_rank=rank, seed=3)
    load_weights(again, tmp_path / "w.safetensors")
    assert again.content_digest() == policy.content_digest()
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]
    again.model(input_ids=IDS).logits.mean().backward()  # they can still be trained


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (("tiny-b", 0), ("tiny", 0), r"is torch.float32 \(\d+, 48\) there, torch.float32 \(\d+, 64\) here"),
        (("tiny", 4), ("tiny", 0), "is here but not there|is there but not here"),
        (("tiny", 4), ("tiny", 8), r"\(4, 64\) there, torch.float32 \(8, 64\) here"),
    ],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, there: tuple[str, int], here: tuple[str, int], message: str
) -> None:
    save_weights(load(there[0], lora_rank=there[1]), tmp_path / "w.safetensors")
    policy = load(here[0], lora_rank=here[1])
    before = policy.content_digest()
    with pytest.raises(ModelError, match=message):
        load_weights(policy, tmp_path / "w.safetensors")
    assert policy.content_digest() == before


@pytest.mark.parametrize("size", [None, 0, 5, 2000])
def test_a_missing_or_broken_file_is_one_sentence(tmp_path: Path, size: int | None) -> None:
    file, policy = tmp_path / "w.safetensors", load("tiny")
    if size is not None:
        save_weights(policy, file)
        file.write_bytes(file.read_bytes()[:size])
    before = policy.content_digest()
    with pytest.raises(ModelError, match=r"cannot read the weights .*; resume from another checkpoint"):
        load_weights(policy, file)
    assert policy.content_digest() == before
