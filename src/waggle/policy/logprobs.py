"""Log-probabilities of packed completions, with gradient, without ever holding a [T, V] tensor.

The inner model runs once over a row (`policy/tree.py`) under an additive float mask: a boolean mask is
right under one attention implementation and silently wrong under another. The output layer then runs over
the states that predict something, a few MB of logits at a time, always in float32; in the backward pass
each chunk is computed again instead of kept. Left out: output layers that scale or squash their logits, which
`verify_packing` finds and refuses.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from waggle.core.errors import ModelError
from waggle.core.rng import rng_for
from waggle.policy.linear import product
from waggle.policy.tree import Packing, Prompted, Row, pack

CHUNK_BYTES = 16 << 20
"""Logits held at once, in bytes of float32."""
TOLERANCE = 1e-3
"""Largest difference between packed and plain log-probabilities that is put down to rounding, in nats."""


class HasModel(Protocol):
    """Anything that holds a causal language model."""

    @property
    def model(self) -> Any: ...


def inner_and_head(model: Any) -> tuple[Any, nn.Linear]:
    """The module that gives hidden states, and the output layer; through a peft wrapper if there is one.

    Raises:
        ModelError: the output layer is not a plain matrix.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ModelError(
            f"the output layer of {causal.config.model_type} is {type(head).__name__}, which cannot be scored in "
            "chunks; load another model"
        )
    return causal.base_model, head


def row_logprobs(model: nn.Module, row: Row, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each trained token, and the entropy of the distribution it was drawn from.

    Args:
        model: a causal language model of transformers, maybe wrapped by peft.
        row: T tokens of which N are trained.
        temperature: logits are divided by it, as the sampler does.

    Returns:
        Log-probabilities (with gradient) and entropies (without), in nats, float32, both [N] in the row's order.
    """
    inner, head = inner_and_head(model)
    device = head.weight.device
    hidden_TD = inner(
        input_ids=_tensor(row.ids_T, device)[None],
        position_ids=_tensor(row.positions_T, device)[None],
        attention_mask=None if row.is_chain else _mask(row, device, _computed_in(head.weight)),
        use_cache=False,
    ).last_hidden_state[0]
    hidden_UD = hidden_TD[_tensor(row.states_U, device)]
    chunk = max(16, CHUNK_BYTES // (4 * head.weight.shape[0]))
    parts = [
        _Score.apply(hidden_UD[a:b], head, state_n, target_n, temperature)
        for a, b, state_n, target_n in _chunks(row, chunk, device)
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _tensor(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)


def _computed_in(weight: Tensor) -> torch.dtype:
    """Number format of queries, which the mask has to match."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _mask(row: Row, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Additive mask, shape [1, 1, T, T]."""
    hidden_TT = torch.from_numpy(~row.sees()).to(device)
    mask_TT = torch.zeros(hidden_TT.shape, dtype=dtype, device=device)
    return mask_TT.masked_fill_(hidden_TT, torch.finfo(dtype).min)[None, None]


def _chunks(row: Row, size: int, device: torch.device) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Ranges of states, with the trained tokens that each range predicts."""
    bounds = [*range(0, len(row.states_U), size), len(row.states_U)]
    cuts = np.searchsorted(row.state_N, bounds)
    for (a, b), (c, d) in zip(pairwise(bounds), pairwise(cuts), strict=True):
        yield a, b, _tensor(row.state_N[c:d] - a, device), _tensor(row.target_N[c:d], device)


class _Score(torch.autograd.Function):
    """Log-probabilities and entropies of one chunk; logits exist for that long only, once in each direction.

    The output layer's gradient is added to its `.grad` here: through autograd every chunk would hold another
    [V, D] for a moment.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, head: nn.Linear, state_N: Tensor, target_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logits_UV = _logits(hidden_UD, head).div_(temperature)
        top_U = logits_UV.amax(-1)
        picked_N = logits_UV[state_N, target_N]
        weights_UV = logits_UV.sub_(top_U[:, None]).exp()
        sum_U = weights_UV.sum(-1)
        total_U = sum_U.log() + top_U
        entropy_N = (sum_U.log() - weights_UV.mul_(logits_UV).sum(-1) / sum_U)[state_N]
        ctx.save_for_backward(hidden_UD, state_N, target_N, total_U)
        ctx.head, ctx.temperature = head, temperature
        ctx.mark_non_differentiable(entropy_N)
        return picked_N - total_U[state_N], entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_UD, state_N, target_N, total_U = ctx.saved_tensors
        # (one-hot of the target - softmax) / temperature, written over the logits.
        grad_UV = _logits(hidden_UD, ctx.head).div_(ctx.temperature).sub_(total_U[:, None]).exp_()
        grad_UV.mul_(-torch.zeros_like(total_U).index_add_(0, state_N, grad_N)[:, None])
        grad_UV.index_put_((state_N, target_N), grad_N, accumulate=True).div_(ctx.temperature)
        _accumulate(ctx.head, grad_UV, hidden_UD)
        return product(grad_UV, ctx.head.weight.t()).to(hidden_UD.dtype), None, None, None, None


def _logits(hidden_UD: Tensor, head: nn.Linear) -> Tensor:
    with torch.autocast(hidden_UD.device.type, enabled=False):
        logits_UV: Tensor = head(hidden_UD.to(head.weight.dtype))
    return logits_UV


def _accumulate(head: nn.Linear, grad_UV: Tensor, hidden_UD: Tensor) -> None:
    weight, bias = head.weight, head.bias
    if weight.requires_grad:
        hidden_UD = hidden_UD.to(weight.dtype)
        weight.grad = grad_UV.T @ hidden_UD if weight.grad is None else weight.grad.addmm_(grad_UV.T, hidden_UD)
    if bias is not None and bias.requires_grad:
        bias.grad = grad_UV.sum(0) if bias.grad is None else bias.grad + grad_UV.sum(0)


def verify_packing(policy: HasModel, packing: Packing = "tree") -> None:
    """Compare packed log-probabilities with plain ones on a small ragged tree; run once after loading.

    Raises:
        ModelError: they differ by more than `TOLERANCE`, so that training would push the wrong tokens.
    """
    error = _packing_error(policy.model, packing)
    if not error <= TOLERANCE:
        config = policy.model.config
        raise ModelError(
            f"{config.model_type} with {config._attn_implementation} attention gives log-probabilities that differ by "
            f"{error:.2g} nats between {packing}-packed and plain rows; load another model or attention implementation"
        )


def choose_packing(policy: HasModel) -> Packing:
    """`tree` where this model computes trees rightly, else `plain`, which costs a forward pass a completion.

    Raises:
        ModelError: not even plain rows are computed rightly.
    """
    if _packing_error(policy.model, "tree") <= TOLERANCE:
        return "tree"
    verify_packing(policy, "plain")
    return "plain"


def _packing_error(model: Any, packing: Packing) -> float:
    """Largest difference in nats; infinite where the model refuses the mask or gives no number."""
    ids = rng_for("verify packing").integers(0, model.config.get_text_config().vocab_size, 64).astype(np.int32)
    prefix, rest = ids[:9], ids[9:]
    groups = [
        Prompted(np.concatenate((prefix, rest[:5])), [rest[5:9], rest[5:6], rest[9:16]]),
        Prompted(np.concatenate((prefix, rest[16:18])), [rest[18:23], rest[18:25]]),
        Prompted(rest[30:33], [rest[33:40]]),
    ]
    with torch.no_grad():
        try:
            packed = logprobs(model, pack(groups, 256, packing))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return float("inf")
        plain = np.concatenate([_plain(model, g.prompt, c) for g in groups for c in g.completions])
    error = float(np.abs(packed - plain).max())
    return error if np.isfinite(error) else float("inf")


def logprobs(model: nn.Module, rows: list[Row], temperature: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Log-probabilities of all trained tokens in the order of `pack`'s input, without gradient, float32 [N]."""
    values_N = np.empty(sum(len(row.index_N) for row in rows), np.float32)
    with torch.no_grad():
        for row in rows:
            values_N[row.index_N] = row_logprobs(model, row, temperature)[0].cpu().numpy()
    return values_N


def _plain(model: Any, prompt: Any, completion: Any) -> np.ndarray[Any, Any]:
    """The oracle: one unpadded sequence through the whole model."""
    ids_1T = torch.from_numpy(np.concatenate((prompt, completion)).astype(np.int64))[None].to(model.device)
    logprobs_TV = model(input_ids=ids_1T).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logprobs_TV.gather(1, ids_1T[0, len(prompt) :, None])[:, 0].cpu().numpy()
