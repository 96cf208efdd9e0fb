"""Weights on disk: a folder that others load, and a file that a run resumes from. Safetensors, never pickle.

`save_model` writes what `transformers.AutoModelForCausalLM.from_pretrained` loads (for a LoRA policy what peft
loads), tokenizer included. `save_weights` writes only what training moves, under the names it has here.
A policy maps its weights from the file they came from, so nothing is ever written over a file in place.
"""

import os
import shutil
from pathlib import Path

import torch

from waggle.core.errors import ModelError
from waggle.core.files import disk_errors
from waggle.policy.policy import Policy
from waggle.policy.quiet import quiet


def save_model(policy: Policy, folder: Path) -> None:
    """Write the model and its tokenizer into `folder`; of files that are there, each is replaced in one step.

    Raises:
        RunError: where the disk refuses.
    """
    fresh = folder / f".{os.getpid()}.tmp"
    with disk_errors(folder), quiet():
        fresh.mkdir(parents=True, exist_ok=True)
        try:
            if policy.adapter is not None:
                policy.adapter.save_pretrained(fresh, save_embedding_layers=False)  # "auto" asks the hub
                (fresh / "README.md").unlink(missing_ok=True)  # peft writes a form to fill in
            else:
                policy.model.save_pretrained(fresh)
            policy.tokenizer.save_pretrained(fresh)
            for file in sorted(fresh.iterdir()):
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def save_weights(policy: Policy, file: Path) -> None:
    """Write the trainable tensors.

    Raises:
        RunError: where the disk refuses.
    """
    from safetensors.torch import save_file

    fresh = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with disk_errors(file):
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in policy.parameters()}, fresh)
            os.replace(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)


def load_weights(policy: Policy, file: Path) -> None:
    """Put saved tensors back. They are all checked before the first is changed.

    Raises:
        ModelError: where the file is missing or broken, or its names, shapes or types are not the policy's.
    """
    from safetensors import SafetensorError, safe_open

    wanted = dict(policy.parameters())
    try:
        with safe_open(file, "pt") as saved, torch.no_grad():
            found = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118  (mapped, not read)
            if fault := _mismatch(found, wanted):
                raise ModelError(
                    f"{file} does not hold the weights of {policy.name}: {fault}; "
                    "resume with the model and adapter the run started with"
                )
            for name, tensor in wanted.items():
                tensor.copy_(found[name])
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {file}: {error}; resume from another checkpoint") from error


def _mismatch(found: dict[str, torch.Tensor], wanted: dict[str, torch.nn.Parameter]) -> str:
    if different := set(found) ^ set(wanted):
        name = min(different)
        return f"{name} is {'there but not here' if name in found else 'here but not there'}"
    for name, tensor in wanted.items():
        there, here = found[name], tensor
        if there.shape != here.shape or there.dtype != here.dtype:
            return f"{name} is {there.dtype} {tuple(there.shape)} there, {here.dtype} {tuple(here.shape)} here"
    return ""
