"""Linear layers on oneDNN: the same numbers and gradients as PyTorch's own, and only where they help."""

from pathlib import Path

import pytest
import torch
from torch import nn

from waggle.policy import linear
from waggle.policy.linear import OneDnnLinear, hasten, held_back, product

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN")
CPU = "vendor_id\t: {}\nmodel name\t: x\n"


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that MKL holds back."""
    monkeypatch.setattr(linear, "held_back", lambda: True)


@pytest.mark.parametrize("shape", [(1, 576), (3, 5, 576), (33, 576), (0, 576)])
@pytest.mark.parametrize("bias", [False, True])
def test_results_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain, fast = nn.Linear(576, 192, bias=bias), nn.Linear(576, 192, bias=bias)
    fast.load_state_dict(plain.state_dict())
    fast.__class__ = OneDnnLinear
    values = torch.randn(shape)
    results = []
    for layer in (plain, fast):
        x = values.clone().requires_grad_()
        out = layer(x)
        (out * torch.linspace(-1, 1, 192)).sum().backward()
        results.append((out, x.grad, *(p.grad for p in layer.parameters())))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_frozen_weight_gets_no_gradient_and_keeps_no_input() -> None:
    layer = nn.Linear(576, 192)
    layer.__class__ = OneDnnLinear
    layer.requires_grad_(False)
    x = torch.randn(4, 576, requires_grad=True)
    out = layer(x)
    assert out.grad_fn is not None
    out.sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, -1), rtol=1e-4, atol=1e-4)


def test_large_float32_layers_alone_are_hastened(forced: None) -> None:
    model = nn.Sequential(nn.Linear(576, 192), nn.Linear(8, 8), nn.Linear(576, 192, dtype=torch.bfloat16))
    assert hasten(model) == 1
    assert [type(layer) for layer in model] == [OneDnnLinear, nn.Linear, nn.Linear]
    assert hasten(model) == 0  # once is enough


def test_where_nothing_is_held_back_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "held_back", lambda: False)
    model = nn.Sequential(nn.Linear(576, 192))
    assert hasten(model) == 0
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("rows", [1, 8, 9, 100, 1025])
def test_a_product_is_that_of_its_rows_however_they_are_rounded_up(forced: None, rows: int) -> None:
    torch.manual_seed(rows)
    rows_MK, weight_NK = torch.randn(rows, 576), torch.randn(192, 576)
    torch.testing.assert_close(product(rows_MK, weight_NK), rows_MK @ weight_NK.t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("machine", "maker", "capability", "expected"),
    [
        ("x86_64", "AuthenticAMD", "AVX512", True),
        ("x86_64", "GenuineIntel", "AVX512", False),
        ("x86_64", "AuthenticAMD", "AVX2", False),
        ("x86_64", "", "AVX512", False),
        ("aarch64", "AuthenticAMD", "AVX512", False),
    ],
)
def test_what_runs_follows_from_the_processor(
    monkeypatch: pytest.MonkeyPatch, machine: str, maker: str, capability: str, expected: bool
) -> None:
    monkeypatch.setattr(linear.platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", lambda *_: CPU.format(maker) if maker else "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    held_back.cache_clear()
    try:
        assert held_back() is expected
    finally:
        held_back.cache_clear()
