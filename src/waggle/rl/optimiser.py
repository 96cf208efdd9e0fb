"""AdamW with a warm-up and a state on disk that restores to the bit (Loshchilov and Hutter 2019, 1711.05101).

Betas 0.9 and 0.95, no weight decay, float32 moments: 8 bytes a trained parameter. The step size rises over the
first `warmup` steps, since the first steps of Adam have the size of the step whatever the gradient. Left
out: schedules after the warm-up; a swarm has no last step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from waggle.core.errors import ModelError
from waggle.core.files import disk_errors

_KEY, _VERSION = "waggle.adamw", 1
"""The one entry of metadata: version, steps and skips. Of several the order in the file would be random."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


def state_bytes(parameters: Sequence[tuple[str, nn.Parameter]]) -> int:
    """Memory of the moments once the first step is done, in bytes."""
    return 2 * 4 * sum(tensor.numel() for _, tensor in parameters)


class AdamW:
    """The optimiser of named parameters. `steps` counts the steps taken, `skips` those skipped in a row."""

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], learning_rate: float, warmup: int) -> None:
        self.parameters = list(parameters)
        self.steps, self.skips = 0, 0
        self._rate, self._warmup = learning_rate, warmup
        tensors = [tensor for _, tensor in self.parameters]
        self._adam = torch.optim.AdamW(tensors, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    @property
    def learning_rate(self) -> float:
        """Step size of the next step."""
        return self._rate * min(1.0, (self.steps + 1) / (self._warmup + 1))

    def scale(self, factor: float, limit: float) -> float:
        """Multiply the gradients by `factor`, then scale them down to a norm of at most `limit`, in one pass.

        Returns:
            The norm after the factor and before the limit; not finite where a gradient is not.
        """
        grads = [tensor.grad for _, tensor in self.parameters if tensor.grad is not None]
        norm = factor * float(torch.nn.utils.get_total_norm(grads))
        if norm > 0:
            torch._foreach_mul_(grads, factor * min(1.0, limit / norm))
        return norm

    def step(self) -> None:
        """Move the parameters and forget the gradients."""
        self._adam.param_groups[0]["lr"] = self.learning_rate
        self._adam.step()
        self.forget()
        self.steps += 1

    def forget(self) -> None:
        """Drop the gradients and their memory."""
        self._adam.zero_grad(set_to_none=True)

    def save(self, file: Path) -> None:
        """Write moments and counters.

        Raises:
            RunError: the disk refuses.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors = {
            f"{moment}/{name}": self._adam.state[tensor][moment].contiguous()
            for name, tensor in self.parameters
            for moment in _MOMENTS
            if tensor in self._adam.state
        }
        counters = {_KEY: f"{_VERSION} {self.steps} {self.skips}"}
        with disk_errors(file):
            try:
                save_file(tensors, file, metadata=counters)
            except SafetensorError as error:  # what a full disk looks like from there
                raise OSError(str(error)) from error

    def load(self, file: Path) -> None:
        """Put back what `save` wrote, into fresh tensors; where that fails, nothing has changed.

        Raises:
            ModelError: the file is missing or damaged, or belongs to another model.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "pt") as saved:
                steps, skips = _counters(saved.metadata() or {}, file)
                names = set(saved.keys())
                fresh: dict[Tensor, dict[str, Tensor]] = {
                    tensor: _restored(saved, name, tensor, steps, file)
                    for name, tensor in self.parameters
                    if f"{_MOMENTS[0]}/{name}" in names
                }
        except (OSError, SafetensorError) as error:
            raise ModelError(f"cannot read optimiser state {file}: {error}; resume from another checkpoint") from error
        known = {f"{moment}/{name}" for moment in _MOMENTS for name, _ in self.parameters}
        if names - known:
            raise ModelError(f"{file} holds {min(names - known)}, which this model does not train; check the model")
        self._adam.state.clear()
        self._adam.state.update(fresh)
        self.steps, self.skips = steps, skips


def _counters(metadata: dict[str, str], file: Path) -> tuple[int, int]:
    words = metadata.get(_KEY, "").split()
    if len(words) != 3 or words[0] != str(_VERSION) or not all(word.isdecimal() for word in words):
        raise ModelError(f"{file} is not optimiser state of this version; resume from another checkpoint")
    return int(words[1]), int(words[2])


def _restored(saved: Any, name: str, tensor: nn.Parameter, steps: int, file: Path) -> dict[str, Tensor]:
    state = {"step": torch.tensor(float(steps), device=tensor.device)}
    for moment in _MOMENTS:
        found = saved.get_tensor(f"{moment}/{name}")
        if found.shape != tensor.shape:
            shapes = f"{tuple(found.shape)}, not {tuple(tensor.shape)}"
            raise ModelError(f"{file}: {name} has shape {shapes}; check the model")
        state[moment] = torch.empty_like(tensor, requires_grad=False).copy_(found)
    return state
