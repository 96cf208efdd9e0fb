import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from waggle.core import config
from waggle.core.config import Config, LearnConfig
from waggle.core.errors import ConfigError, RunError
from waggle.rl.losses import LOSSES, MAX_LOG_RATIO, LossInputs, clipped, loss_of

TABLE = json.loads((Path(__file__).parents[1] / "golden/losses.json").read_text())
"""Computed apart from the library: plain floats, gradients (for the log-probability) by central differences."""


def inputs(cases: list[dict[str, Any]]) -> LossInputs:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([case[name] for case in cases], dtype=torch.float32)

    logprobs_N = column("probability").log().requires_grad_()
    return LossInputs(logprobs_N, column("sampler").log(), column("advantage"), column("foreign").bool())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_the_table(name: str) -> None:
    x = inputs(TABLE)
    loss_N = LOSSES[name](x)
    loss_N.sum().backward()
    for case, loss, grad in zip(TABLE, loss_N.tolist(), x.logprobs_N.grad.tolist(), strict=True):  # type: ignore[union-attr]
        assert loss == pytest.approx(case["loss"][name], abs=2e-5, rel=2e-5), case["case"]
        assert grad == pytest.approx(case["gradient"][name], abs=2e-5, rel=2e-5), case["case"]


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_every_loss_has_the_gradient_of_reinforce(name: str) -> None:
    advantages_N = torch.tensor([0.75, -0.25, 0.0, -0.5])
    logprobs_N = torch.tensor([-0.1, -2.0, -0.5, -7.0], requires_grad=True)
    foreign_N = torch.tensor([False, False, True, True])
    LOSSES[name](LossInputs(logprobs_N, logprobs_N.detach(), advantages_N, foreign_N)).sum().backward()
    torch.testing.assert_close(logprobs_N.grad, -advantages_N)


@pytest.mark.parametrize("name", LOSSES)
def test_a_foreign_negative_is_never_pushed_harder_than_an_own_one(name: str) -> None:
    logprobs_N = torch.linspace(-12, 0, 200).requires_grad_()
    old_N = torch.full((200,), -6.0)
    x = LossInputs(logprobs_N, old_N, torch.full((200,), -1.0), torch.ones(200, dtype=torch.bool))
    LOSSES[name](x).sum().backward()
    assert logprobs_N.grad is not None
    assert float(logprobs_N.grad.max()) <= 1 + 1e-5
    assert float(logprobs_N.grad.min()) >= 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("logprob", [-1e4, -50.0, 0.0])
def test_far_away_tokens_stay_finite(name: str, logprob: float) -> None:
    logprobs_N = torch.tensor([logprob] * 4, requires_grad=True)
    x = LossInputs(
        logprobs_N, torch.tensor([-30.0] * 4), torch.tensor([1.0, -1, 1, -1]), torch.tensor([0, 0, 1, 1]) > 0
    )
    loss_N = LOSSES[name](x)
    loss_N.sum().backward()
    assert torch.isfinite(loss_N).all()
    assert torch.isfinite(logprobs_N.grad).all()  # type: ignore[arg-type]
    assert float(x.ratio_N.detach().max()) <= math.exp(MAX_LOG_RATIO) * (1 + 1e-6)


def test_what_counts_as_clipped() -> None:
    low_N, high_N = clipped(inputs(TABLE))
    cut = {case["case"] for case in TABLE if case["case"].endswith(": cut off")}
    assert {case["case"] for case, low, high in zip(TABLE, low_N, high_N, strict=True) if low or high} == cut
    assert {case["case"] for case, low in zip(TABLE, low_N, strict=True) if low} == {c for c in cut if "below" in c}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("setting", "value"), [("clip_low", 0.5), ("clip_high", 0.9)])
def test_a_bound_without_effect_on_a_loss_is_refused_by_the_configuration(
    name: Any, setting: str, value: float
) -> None:
    x = inputs(TABLE)
    matters = not torch.equal(LOSSES[name](x), LOSSES[name](replace(x, **{setting: value})))
    learn = LearnConfig(loss=name, **{setting: value})  # type: ignore[arg-type]
    if matters:
        assert Config(learn=learn).learn == learn
    else:
        with pytest.raises(ValueError, match="no effect"):
            Config(learn=learn)


def test_every_named_loss_is_a_setting_and_the_other_way_round() -> None:
    assert set(LOSSES) == set(config.LOSSES)
    assert all(loss_of(name) is LOSSES[name] for name in LOSSES)


def test_a_loss_of_ones_own_gives_a_number_a_token(tmp_path: Path) -> None:
    x = inputs(TABLE)
    loss_N = loss_of("examples/own.py:only_right")(x)
    assert loss_N.tolist() == pytest.approx((-x.advantages_N.clamp(min=0) * x.logprobs_N).tolist())
    (tmp_path / "mine.py").write_text("def f(x):\n    return x.logprobs_N.sum()\n")
    with pytest.raises(RunError, match=r"it has to return a tensor of shape \(\d+,\)"):
        loss_of(f"{tmp_path / 'mine.py'}:f")(x)
    with pytest.raises(ConfigError, match="there is no function"):
        loss_of(f"{tmp_path / 'mine.py'}:g")
