"""Matrix products on processors that PyTorch's usual library holds back.

On x86, PyTorch sends float32 products to MKL, which runs AVX2 code on processors of other makers than Intel even
where they have AVX-512. oneDNN, which PyTorch also contains, uses it: on an AMD EPYC core 210 instead of 100
GFLOPS for 1024 rows, 130 instead of 72 for 32. `hasten` gives the linear layers of a model a class that calls oneDNN in
both directions; results differ by rounding. Which library runs follows from the machine alone, never from a timing,
so that a resumed run repeats the straight one.

oneDNN builds a kernel for every shape and keeps it, so numbers of rows are rounded up to a few. Left out: small
layers, where that costs more than it brings; bfloat16, which PyTorch gives to oneDNN by itself.
"""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_LEAST_WEIGHTS = 1 << 16


@lru_cache(maxsize=1)
def held_back() -> bool:
    """Whether MKL would leave much of this processor idle and oneDNN is there to take over."""
    return (
        platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _maker() not in ("GenuineIntel", "")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def hasten(model: nn.Module) -> int:
    """Let large linear layers on a CPU use oneDNN where MKL is held back; returns how many do."""
    if not held_back():
        return 0
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is nn.Linear and layer.weight.numel() >= _LEAST_WEIGHTS and _served(layer.weight)
    ]
    for layer in layers:
        layer.__class__ = OneDnnLinear
    return len(layers)


class OneDnnLinear(nn.Linear):
    """A linear layer whose products are oneDNN's."""

    def forward(self, input: Tensor) -> Tensor:
        rows_MK = input.reshape(-1, self.in_features)
        out_MN: Tensor = _Product.apply(rows_MK, self.weight)
        if self.bias is not None:
            out_MN = out_MN + self.bias
        return out_MN.view(*input.shape[:-1], self.out_features)


class _Product(torch.autograd.Function):
    """`rows @ weight.T`. What a frozen weight does not need for its backward pass is not kept."""

    @staticmethod
    def forward(ctx: Any, rows_MK: Tensor, weight_NK: Tensor) -> Tensor:
        ctx.save_for_backward(rows_MK if ctx.needs_input_grad[1] else None, weight_NK)
        return _call(_rounded(rows_MK), weight_NK)[: len(rows_MK)]

    @staticmethod
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows_MK, weight_NK = ctx.saved_tensors
        grad_MK = _call(_rounded(grad_MN), weight_NK.t())[: len(grad_MN)] if ctx.needs_input_grad[0] else None
        grad_NK = None if rows_MK is None else _call(_rounded(grad_MN).t(), _rounded(rows_MK).t())
        return grad_MK, grad_NK


def product(rows_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """`rows @ weight.T` by the faster library, [M, N]; without gradient where that is oneDNN."""
    if not (_served(rows_MK) and weight_NK.numel() >= _LEAST_WEIGHTS and held_back()):
        return nn.functional.linear(rows_MK, weight_NK)
    return _call(_rounded(rows_MK), weight_NK)[: len(rows_MK)]


def _served(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def _call(rows_MK: Tensor, weight_NK: Tensor) -> Tensor:
    out_MN: Tensor = torch.ops.mkldnn._linear_pointwise(rows_MK, weight_NK, None, "none", [], "")
    return out_MN


def _rounded(rows_MK: Tensor) -> Tensor:
    """The rows with zeros below, up to a multiple of 8 and of an eighth to a quarter of their number."""
    num = len(rows_MK)
    step = max(8, 1 << max(0, num.bit_length() - 3))
    missing = -num % step if num else step  # oneDNN refuses products without rows
    return nn.functional.pad(rows_MK, (0, 0, 0, missing)) if missing else rows_MK


def _maker() -> str:
    """Who made the processor, e.g. `AuthenticAMD`; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
