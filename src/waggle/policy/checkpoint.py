"""Weights on disk: a folder that others load, and a file that a run resumes from. Safetensors, never pickle.

`save_model` writes what `transformers.AutoModelForCausalLM.from_pretrained` loads (for a LoRA policy what peft
loads), tokenizer included. `save_weights` writes only what training moves, under the names it has here.
"""

from pathlib import Path

import torch

from waggle.core.errors import ModelError
from waggle.core.files import disk_errors
from waggle.policy.policy import Policy


def save_model(policy: Policy, folder: Path) -> None:
    """Write the model and its tokenizer into `folder`.

    Raises:
        RunError: where the disk refuses.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if policy.lora:
            policy.adapter.save_pretrained(folder)
        else:
            policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


def save_weights(policy: Policy, file: Path) -> None:
    """Write the trainable tensors.

    Raises:
        RunError: where the disk refuses.
    """
    from safetensors.torch import save_file

    with disk_errors(file):
        save_file({name: tensor.detach().contiguous() for name, tensor in policy.parameters()}, file)


def load_weights(policy: Policy, file: Path) -> None:
    """Put saved tensors back, one at a time.

    Raises:
        ModelError: where the file is missing or broken, or its names, shapes or types are not the policy's.
    """
    from safetensors import SafetensorError, safe_open

    wanted = dict(policy.parameters())
    try:
        with safe_open(file, "pt") as saved, torch.no_grad():
            if extra := set(saved.keys()) ^ set(wanted):
                raise ModelError(_mismatch(file, policy, f"{sorted(extra)[0]} is in one but not in the other"))
            for name, tensor in wanted.items():
                found = saved.get_tensor(name)
                if found.shape != tensor.shape or found.dtype != tensor.dtype:
                    what = (
                        f"{name} is {found.dtype} {tuple(found.shape)} there, {tensor.dtype} {tuple(tensor.shape)} here"
                    )
                    raise ModelError(_mismatch(file, policy, what))
                tensor.copy_(found)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {file}: {error}; resume from another checkpoint") from error


def _mismatch(file: Path, policy: Policy, what: str) -> str:
    return f"{file} does not hold the weights of {policy.name}: {what}; resume with the model the run started with"
