"""Activations within a bound: late layers keep theirs, as many as fit, and early layers are computed again.

What a layer keeps for the backward pass is measured once, in bytes a token. While the gradients of a step do
not exist yet their memory is lent to the first row, since activations vanish layer by layer as gradients appear;
so a step of one row computes little twice. Early layers are the ones to compute again, because by then the
late ones have gone (Chen et al. 2016, arXiv 1604.06174, with uneven segments). The bound only holds if freed
memory is really given back: the C library would keep it in pieces too small for anything else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from waggle.policy.logprobs import inner_and_head
from waggle.policy.machine import trim
from waggle.policy.policy import Policy

BUDGET_BYTES = 128 << 20
"""Activations kept beside weights, gradients and optimiser state, in bytes."""
_PROBE_TOKENS = 64
_TRIM_BYTES = 96 << 20
"""Activations after which freed memory is given back."""


class Activations:
    """How many layers of a policy may keep their activations. Example: `Activations(policy).recomputing(512)`."""

    def __init__(self, policy: Policy, budget_bytes: int = 0) -> None:
        inner, _ = inner_and_head(policy.model)
        self.layers = _layers(inner)
        self.bytes_per_token = _saved_bytes(policy, inner) / _PROBE_TOKENS / len(self.layers)
        """Of one layer."""
        self._budget_bytes = budget_bytes or BUDGET_BYTES
        self._on_heap = policy.device.type == "cpu"
        self._grads = [p for layer in self.layers for p in layer.parameters() if p.requires_grad]

    def kept(self, num_tokens: int) -> int:
        """How many layers keep their activations over a row of this many tokens."""
        lent_bytes = sum(p.numel() * p.element_size() for p in self._grads if p.grad is None)
        share = (self._budget_bytes + lent_bytes) / self._size(num_tokens)
        return min(len(self.layers), int(share * len(self.layers)))

    def _trimmed(self, num_tokens: int) -> Sequence[Any]:
        """Every so many layers, the last among them; none where all together are small."""
        if not self._on_heap or self._size(num_tokens) <= _TRIM_BYTES:
            return []
        return self.layers[:: -max(1, int(_TRIM_BYTES / (self.bytes_per_token * num_tokens)))]

    def _size(self, num_tokens: int) -> float:
        """What all layers together would keep of a row, in bytes."""
        return self.bytes_per_token * num_tokens * len(self.layers)

    @contextmanager
    def recomputing(self, num_tokens: int) -> Iterator[None]:
        """Inside, a forward pass keeps only what fits; its backward pass may be outside."""
        early = self.layers[: len(self.layers) - self.kept(num_tokens)]
        hooks = [layer.register_forward_hook(_trimming) for layer in self._trimmed(num_tokens)]
        for layer in early:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        try:
            yield
        finally:
            for layer in early:
                del layer.forward
            for hook in hooks:
                hook.remove()


def _trimming(layer: Any, inputs: Any, output: Any) -> None:
    """Give memory back now, and once the backward pass has come down to this layer."""
    trim()
    hidden = output[0] if isinstance(output, tuple) else output
    if hidden.requires_grad:
        hidden.register_hook(lambda grad: trim())


def _layers(inner: nn.Module) -> Sequence[Any]:
    """The repeated blocks: the longest list of modules."""
    blocks = [m for m in inner.modules() if isinstance(m, nn.ModuleList)]
    return max((list(block) for block in blocks), key=len)


def _saved_bytes(policy: Policy, inner: Any) -> int:
    """What one forward pass over the probe keeps for its backward pass, weights aside."""
    sizes = {p.untyped_storage().data_ptr(): 0 for p in inner.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    ids_1T = torch.zeros((1, _PROBE_TOKENS), dtype=torch.long, device=policy.device)
    with policy.autocast(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = inner(input_ids=ids_1T, use_cache=False).last_hidden_state
    del kept
    return sum(sizes.values())
