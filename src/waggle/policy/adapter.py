"""Low-rank adapters (Hu et al. 2021, LoRA) through peft: many nodes on one base in one process.

Each policy has a module tree of its own whose base tensors are shared objects, so nodes can neither see nor
disturb each other's adapter and no adapter has to be switched in before use. Left out: adapters on embeddings,
quantised bases, dropout.
"""

from typing import Any

import torch

from waggle.core.errors import ModelError
from waggle.core.rng import seed_for

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that are adapted, by the last part of their name."""


def attach(model: Any, rank: int, seed: int, name: str) -> Any:
    """Freeze `model`, inject a fresh adapter into its linear layers, and return the peft wrapper.

    Raises:
        ModelError: where the model has none of the layers that are adapted.
    """
    from peft import LoraConfig, get_peft_model

    present = {path.rpartition(".")[2] for path, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    targets = [target for target in TARGETS if target in present]
    if not targets:
        raise ModelError(f"{name} has no layer that a LoRA adapter fits on ({', '.join(TARGETS)}); set lora_rank = 0")
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    adapter = get_peft_model(model, config)
    reset(adapter, seed)
    return adapter


def reset(adapter: Any, seed: int) -> None:
    """Start the adapter afresh: A uniform in ±1/sqrt(inputs) from the seed, B zero, so the base is unchanged."""
    generator = torch.Generator().manual_seed(seed_for("lora", seed))
    with torch.no_grad():
        for name, tensor in adapter.named_parameters():
            if "lora_A" in name:
                values = torch.rand(tensor.shape, generator=generator) * 2 - 1
                tensor.copy_(values * tensor.shape[1] ** -0.5)
            elif "lora_B" in name:
                tensor.zero_()
