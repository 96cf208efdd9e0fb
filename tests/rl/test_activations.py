from typing import Any

import pytest
import torch

from waggle.policy.load import load
from waggle.policy.logprobs import row_logprobs
from waggle.policy.policy import Policy
from waggle.policy.tree import Prompted, Row, pack
from waggle.rl import activations as module
from waggle.rl.activations import BUDGET_BYTES, Activations


@pytest.fixture
def policy() -> Policy:
    return load("tiny")


def row() -> Row:
    return pack([Prompted([5, 6, 7], [[8, 9, 2], [8, 3], [4, 4, 4, 2]])], 100)[0]


def gradients(policy: Policy, activations: Activations) -> list[torch.Tensor]:
    policy.model.zero_grad(set_to_none=True)
    with activations.recomputing(len(row().ids_T)):
        values_N, _ = row_logprobs(policy.model, row())
    values_N.sum().backward()
    return [p.grad.clone() for _, p in policy.parameters() if p.grad is not None]


def test_what_is_computed_again_has_the_same_gradients_to_the_bit(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TRIM_BYTES", 0)
    calls: list[Any] = []
    layers = Activations(policy).layers
    for layer in layers:
        layer.mlp.gate_proj.register_forward_hook(lambda *_: calls.append(1))
    everything = gradients(policy, Activations(policy, 1 << 30))
    kept_calls = len(calls)
    frugal = Activations(policy, 1)
    monkeypatch.setattr(frugal, "_grads", [])
    calls.clear()
    for mine, other in zip(gradients(policy, frugal), everything, strict=True):
        assert torch.equal(mine, other)
    assert (kept_calls, len(calls)) == (3 + 3, 2 * 3)  # the first three were the probe's
    assert all("forward" not in vars(layer) and not layer._forward_hooks for layer in layers)


def test_early_layers_are_the_ones_to_compute_again(policy: Policy) -> None:
    activations = Activations(policy, int(3 * 100 * Activations(policy).bytes_per_token * 0.7))
    activations._grads = []
    with activations.recomputing(100):
        assert ["forward" in vars(layer) for layer in activations.layers] == [True, False, False]


def test_layers_are_as_they_were_after_an_error(policy: Policy) -> None:
    activations = Activations(policy, 1)
    activations._grads = []
    with activations.recomputing(100):
        assert all("forward" in vars(layer) for layer in activations.layers)
    with pytest.raises(KeyError), activations.recomputing(100):
        raise KeyError
    assert all("forward" not in vars(layer) for layer in activations.layers)


def test_the_probe_counts_what_a_layer_keeps(policy: Policy) -> None:
    floats = Activations(policy, 1).bytes_per_token / 4
    hidden, wide = 64, policy.model.config.intermediate_size
    assert 4 * wide + 6 * hidden < floats < 4 * wide + 14 * hidden


def test_more_tokens_leave_fewer_layers_and_gradients_take_their_memory_back(policy: Policy) -> None:
    activations = Activations(policy, 300_000)
    assert [activations.kept(n) for n in (1, 1000, 10**9)] == [3, activations.kept(1000), 0]
    counts = [activations.kept(n) for n in range(1, 400)]
    assert counts == sorted(counts, reverse=True)
    assert set(counts) == {3, 2, 1} or set(counts) == {3, 2, 1, 0}
    before = activations.kept(150)
    for _, tensor in policy.parameters():
        tensor.grad = torch.zeros_like(tensor)
    assert activations.kept(150) < before


def test_freed_memory_is_given_back_after_so_many_bytes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    activations = Activations(policy)
    layers = activations.layers
    size = int(activations.bytes_per_token * 100) + 1
    for trim_bytes, expected in ((4 * size, []), (2 * size, [2, 0]), (size, [2, 1, 0]), (1, [2, 1, 0])):
        monkeypatch.setattr(module, "_TRIM_BYTES", trim_bytes)
        assert list(activations._trimmed(100)) == [layers[i] for i in expected]


def test_the_default_bound(policy: Policy) -> None:
    assert Activations(policy).kept(BUDGET_BYTES) == 0
    assert Activations(policy).kept(1000) == 3
