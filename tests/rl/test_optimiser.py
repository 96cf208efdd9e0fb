from pathlib import Path

import pytest
import torch
from torch import nn

from waggle.core.errors import ModelError, RunError
from waggle.rl.optimiser import AdamW, state_bytes


def parameters(seed: int = 0, names: str = "ab") -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)
    return [(name, nn.Parameter(torch.randn((3, 2), generator=generator))) for name in names]


def moved(optimiser: AdamW, seed: int) -> AdamW:
    generator = torch.Generator().manual_seed(seed)
    for _, tensor in optimiser.parameters:
        tensor.grad = torch.randn(tensor.shape, generator=generator)
    optimiser.step()
    return optimiser


def values(optimiser: AdamW) -> list[list[list[float]]]:
    return [tensor.tolist() for _, tensor in optimiser.parameters]


@pytest.mark.parametrize(
    ("warmup", "rates"), [(0, [1.0, 1.0, 1.0]), (1, [0.5, 1.0, 1.0]), (3, [0.25, 0.5, 0.75, 1.0, 1.0])]
)
def test_the_step_size_rises_over_the_warm_up(warmup: int, rates: list[float]) -> None:
    optimiser = AdamW(parameters(), 1.0, warmup)
    for rate in rates:
        assert optimiser.learning_rate == pytest.approx(rate)
        moved(optimiser, 0)


def test_one_step_by_hand() -> None:
    optimiser = AdamW([("a", nn.Parameter(torch.tensor([1.0, 2.0])))], 0.1, 0)
    optimiser.parameters[0][1].grad = torch.tensor([0.5, -3.0])
    optimiser.step()
    assert values(optimiser)[0] == pytest.approx([0.9, 2.1], abs=1e-6)
    assert optimiser.parameters[0][1].grad is None
    assert optimiser.steps == 1


def test_two_steps_by_hand() -> None:
    optimiser = AdamW([("a", nn.Parameter(torch.tensor([0.0])))], 1.0, 0)
    for grad in (1.0, 3.0):
        optimiser.parameters[0][1].grad = torch.tensor([grad])
        optimiser.step()
    first = (0.9 * 0.1 * 1 + 0.1 * 3) / (1 - 0.9**2)
    second = (0.95 * 0.05 * 1 + 0.05 * 9) / (1 - 0.95**2)
    assert values(optimiser)[0] == pytest.approx([-1 - first / second**0.5], abs=1e-5)


@pytest.mark.parametrize(
    ("factor", "limit", "norm", "scaled"),
    [
        (1.0, 10.0, 5.0, [3.0, 4.0]),
        (0.5, 10.0, 2.5, [1.5, 2.0]),
        (0.5, 1.0, 2.5, [0.6, 0.8]),
        (1.0, 5.0, 5.0, [3.0, 4.0]),
    ],
)
def test_gradients_are_divided_and_then_clipped(factor: float, limit: float, norm: float, scaled: list[float]) -> None:
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert AdamW([("a", a), ("b", b)], 1.0, 0).scale(factor, limit) == pytest.approx(norm)
    assert [float(a.grad), float(b.grad)] == pytest.approx(scaled)


def test_gradients_of_nothing_and_of_no_number() -> None:
    optimiser = AdamW(parameters(), 1.0, 0)
    for _, tensor in optimiser.parameters:
        tensor.grad = torch.zeros_like(tensor)
    assert optimiser.scale(1.0, 1.0) == 0.0
    optimiser.parameters[0][1].grad[0, 0] = torch.inf  # type: ignore[index]
    assert optimiser.scale(1.0, 1.0) == float("inf")


@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_restored_state_continues_to_the_bit(tmp_path: Path, steps_before: int) -> None:
    straight = AdamW(parameters(), 0.01, 2)
    for seed in range(steps_before):
        moved(straight, seed)
    straight.skips = 2
    straight.save(tmp_path / "state.safetensors")
    tensors = [(name, nn.Parameter(tensor.detach().clone())) for name, tensor in straight.parameters]
    resumed = moved(AdamW(tensors, 0.01, 2), 99)  # has state of its own, which must go
    for (_, mine), (_, his) in zip(resumed.parameters, straight.parameters, strict=True):
        mine.data.copy_(his.data)
    resumed.load(tmp_path / "state.safetensors")
    assert (resumed.steps, resumed.skips) == (steps_before, 2)
    for seed in range(7, 10):
        moved(straight, seed)
        moved(resumed, seed)
        assert values(straight) == values(resumed)


def test_a_tensor_that_never_had_a_gradient_has_no_state(tmp_path: Path) -> None:
    optimiser = AdamW(parameters(names="ab"), 0.01, 0)
    optimiser.parameters[0][1].grad = torch.ones(3, 2)
    optimiser.step()
    optimiser.save(tmp_path / "state")
    again = AdamW(parameters(names="ab"), 0.01, 0)
    again.load(tmp_path / "state")
    assert moved(again, 1).steps == 2


def test_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    moved(AdamW(parameters(names="ab"), 0.01, 0), 0).save(tmp_path / "state")
    with pytest.raises(ModelError, match="holds exp_avg/b, which this model does not train"):
        AdamW(parameters(names="a"), 0.01, 0).load(tmp_path / "state")
    narrow = [("a", nn.Parameter(torch.zeros(3))), ("b", nn.Parameter(torch.zeros(3, 2)))]
    with pytest.raises(ModelError, match=r"a has shape \(3, 2\), not \(3,\)"):
        AdamW(narrow, 0.01, 0).load(tmp_path / "state")


def test_equal_states_have_equal_bytes(tmp_path: Path) -> None:
    optimiser = moved(AdamW(parameters(names="abcdef"), 0.01, 2), 1)
    optimiser.save(tmp_path / "first")
    for _ in range(8):
        optimiser.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "first").read_bytes()


def test_a_state_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    moved(AdamW(parameters(names="abx"), 0.01, 0), 0).save(tmp_path / "state")
    optimiser = moved(moved(AdamW(parameters(names="ab"), 0.01, 0), 1), 2)
    optimiser.save(tmp_path / "before")
    with pytest.raises(ModelError):
        optimiser.load(tmp_path / "state")
    optimiser.save(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


def test_files_that_are_not_state_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    optimiser = AdamW(parameters(), 0.01, 0)
    with pytest.raises(ModelError, match="cannot read"):
        optimiser.load(tmp_path / "absent")
    (tmp_path / "torn").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(ModelError, match="cannot read"):
        optimiser.load(tmp_path / "torn")
    for metadata in (None, {"waggle.adamw": "2 1 0"}, {"waggle.adamw": "1 x 0"}, {"waggle.adamw": "1 1"}):
        save_file({"x": torch.zeros(1)}, tmp_path / "other", metadata=metadata)
        with pytest.raises(ModelError, match="not optimiser state of this version"):
            optimiser.load(tmp_path / "other")
    with pytest.raises(RunError, match="cannot write"):
        optimiser.save(tmp_path / "no-such-folder" / "state")


def test_state_takes_eight_bytes_a_parameter() -> None:
    assert state_bytes(parameters()) == 2 * 6 * 8
