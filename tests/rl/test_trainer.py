import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from tests.rl.groups import ME, PEER, group, sampled, spelled, text
from waggle.core.config import LearnConfig
from waggle.core.errors import RunError
from waggle.policy.load import load
from waggle.policy.policy import Policy
from waggle.rl.batch import Batch, build
from waggle.rl.losses import LOSSES
from waggle.rl.trainer import Trainer


@pytest.fixture
def policy() -> Policy:
    return load("tiny")


def trainer(policy: Policy, temperature: float = 1.0, packing: Any = "tree", **learn: Any) -> Trainer:
    return Trainer(policy, LearnConfig(**{"learning_rate": 1e-3, "warmup": 0, **learn}), temperature, packing)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in policy.parameters()}


def gradient(policy: Policy, batch: Batch, **options: Any) -> dict[str, torch.Tensor]:
    """Of the mean token loss."""
    policy.model.zero_grad(set_to_none=True)
    trainer(policy, **options).accumulate(batch)
    return {name: tensor.grad / batch.num_tokens for name, tensor in policy.parameters() if tensor.grad is not None}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], relative: float) -> None:
    """Equal up to a share of each tensor's norm."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert float((found[name] - tensor).norm()) <= relative * float(tensor.norm()), name


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_before_the_first_step_the_ratio_is_one(policy: Policy, temperature: float) -> None:
    groups = sampled(policy, num=6, temperature=temperature)
    finishes = {r.completion.finish for g in groups for r in g.rollouts}
    report = trainer(policy, temperature).step(build(groups, policy, ME))
    assert finishes >= {"length"}
    assert report.diff_max_own < 1e-4
    assert report.ratio_max == pytest.approx(1, abs=1e-4)
    assert (report.clipped_low, report.clipped_high) == (0, 0)
    assert report.num_tokens == sum(len(r.completion.tokens.ids) for g in groups for r in g.rollouts)  # type: ignore[union-attr]
    wrong = trainer(policy, 2.0).step(build(groups, policy, ME))
    assert wrong.diff_max_own > 0.01


def test_stops_and_cut_offs_agree_with_the_sampler(policy: Policy) -> None:
    with torch.no_grad():  # a model that often ends early
        policy.model.lm_head.weight[policy.stop_ids[0]] *= 3
    groups = sampled(policy, num=12)
    assert {r.completion.finish for g in groups for r in g.rollouts} == {"stop", "length"}
    assert trainer(policy).step(build(groups, policy, ME)).diff_max_own < 1e-4


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_do_not_change_the_gradient(policy: Policy, loss: str) -> None:
    batch = build([*sampled(policy, 5), *sampled(policy, 3, author=PEER, seed=1)], policy, ME)
    wanted = gradient(policy, batch, loss=loss)
    assert_close(gradient(policy, batch, loss=loss, token_budget=64), wanted, 1e-5)
    assert_close(gradient(policy, batch, loss=loss, packing="plain"), wanted, 1e-5)


def test_the_longest_row_comes_first(policy: Policy) -> None:
    groups = [group((text(w), 1.0), (text(w + w), 0.0), question=w) for w in ("a" * 9, "b" * 40, "c" * 20)]
    rows, _ = trainer(policy, token_budget=64).accumulate(build(groups, policy, ME))
    lengths = [len(row.ids_T) for row in rows]
    assert len(lengths) > 1
    assert lengths == sorted(lengths, reverse=True)


def test_micro_batches_equal_one_batch(policy: Policy) -> None:
    policy.model.double()  # what is left of a difference is then rounding of the losses, which are float32
    first, second = build(sampled(policy, 5), policy, ME), build(sampled(policy, 3, seed=1), policy, ME)
    whole = gradient(policy, Batch(first.examples + second.examples))
    policy.model.zero_grad(set_to_none=True)
    parts = trainer(policy)
    parts.accumulate(first)
    parts.accumulate(second)
    num_tokens = first.num_tokens + second.num_tokens
    split = {name: p.grad / num_tokens for name, p in policy.parameters() if p.grad is not None}
    assert_close(split, whole, 1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_on_policy_every_loss_takes_the_same_step(policy: Policy, loss: str) -> None:
    batch = build(sampled(policy, 5), policy, ME)
    known = Batch(tuple(replace(e, known=(False,) * len(e.lengths)) for e in batch.examples))
    assert_close(gradient(policy, known, loss=loss), gradient(policy, known, loss="reinforce"), 1e-6)


def test_a_step_makes_the_good_answer_likelier(policy: Policy) -> None:
    batch = build([group((spelled(policy, "7"), 1.0), (spelled(policy, "8"), 0.0))], policy, ME)
    mine = trainer(policy, loss="reinforce")
    reports = [mine.step(batch) for _ in range(3)]
    losses = [report.loss for report in reports]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.05
    assert all(not report.skipped and report.grad_norm > 0 for report in reports)


def test_a_batch_without_a_signal_is_a_step_that_does_nothing(policy: Policy) -> None:
    before, mine = weights(policy), trainer(policy)
    alike = build([group((text("7"), 1.0), (text("8"), 1.0))], policy, ME)
    report = mine.step(alike)
    assert (report.skipped, report.num_tokens, mine.optimiser.steps, mine.optimiser.skips) == (True, 0, 0, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.parameters())
    level = build([group((text("7"), 1.0), (text("8"), 0.0))], policy, ME)
    zero = Batch(tuple(replace(e, advantages=(0.0, 0.0)) for e in level.examples))
    assert all(not grad.any() for grad in gradient(policy, zero).values())


def test_text_takes_my_own_log_probabilities_as_old(policy: Policy) -> None:
    groups = [group((text("7"), 1.0), (text("8"), 0.0), author=PEER)]
    report = trainer(policy).step(build(groups, policy, ME))
    assert (report.ratio_mean, report.ratio_max, report.diff_max_foreign, report.diff_max_own) == (1, 1, 0, 0)


@pytest.mark.parametrize("loss", LOSSES)
def test_of_peers_texts_only_the_better_ones_are_learned(policy: Policy, loss: str) -> None:
    def batch(author: bytes, wrong: float) -> Batch:
        whole = build([group((text("7"), 1.0), (text("88"), 0.0), author=author)], policy, ME)
        return Batch(tuple(replace(e, advantages=(e.advantages[0], wrong * e.advantages[1])) for e in whole.examples))

    better_alone = gradient(policy, batch(ME, 0), loss=loss)
    assert_close(gradient(policy, batch(PEER, 1), loss=loss), better_alone, 1e-6)
    mine = gradient(policy, batch(ME, 1), loss=loss)
    assert any(float((mine[name] - grad).norm()) > 0.01 * float(grad.norm()) for name, grad in better_alone.items())


def test_foreign_answers_outside_the_window_teach_nothing_and_own_ones_are_not_asked(policy: Policy) -> None:
    def batch(author: bytes) -> Batch:
        odd = (text("qzqzqzqzqzqz"), 1.0)
        return build([group(odd, (text("8"), 0.0), author=author)], policy, ME)

    shut = gradient(policy, batch(PEER), window=0.001)
    assert all(not grad.any() for grad in shut.values())
    open_wide = gradient(policy, batch(PEER), window=30.0)
    assert_close(gradient(policy, batch(PEER)), open_wide, 1e-6)
    assert any(grad.any() for grad in open_wide.values())
    assert any(grad.any() for grad in gradient(policy, batch(ME), window=0.001).values())


def test_a_foreign_answer_likelier_for_me_is_pushed_down_no_harder_than_my_own(policy: Policy) -> None:
    def batch(author: bytes, logprob: float | None) -> Batch:
        answers = [(spelled(policy, w, logprob=logprob), r) for w, r in (("7", 0.0), ("8", 0.0), ("9", 1.0))]
        whole = build([group(*answers, author=author)], policy, ME)
        return Batch(tuple(replace(e, advantages=(*e.advantages[:2], 0.0)) for e in whole.examples))

    wanted = gradient(policy, batch(ME, None), loss="clip")
    assert_close(gradient(policy, batch(PEER, -9.0), loss="clip"), wanted, 1e-5)
    own = gradient(policy, batch(ME, -9.0), loss="clip")
    assert float(own["model.norm.weight"].norm()) > 10 * float(wanted["model.norm.weight"].norm())


def test_own_and_foreign_differences_are_told_apart(policy: Policy) -> None:
    groups = [
        group((spelled(policy, "7", logprob=-1.0), 1.0), (spelled(policy, "8", logprob=-1.0), 0.0)),
        group((spelled(policy, "7", logprob=-90.0), 1.0), (spelled(policy, "8", logprob=-90.0), 0.0), author=PEER),
    ]
    report = trainer(policy).step(build(groups, policy, ME))
    assert 80 < report.diff_mean_foreign <= report.diff_max_foreign < 91
    assert 0 < report.diff_mean_own <= report.diff_max_own < 30
    assert report.clipped_high == pytest.approx(0.25)
    assert report.numbers() == {n: float(v) for n, v in asdict(report).items() if n != "inside"}


def poisoned(policy: Policy, at: int) -> Batch:
    (example,) = build([group((spelled(policy, "7"), 1.0), (spelled(policy, "8"), 0.0))], policy, ME).examples
    old_N = example.old_N.copy()
    old_N[:at] = np.nan
    return Batch((replace(example, old=old_N.tobytes()),))


def test_a_token_that_is_not_finite_is_left_out_of_sum_and_count(policy: Policy) -> None:
    mine = trainer(policy)
    mine.accumulate(poisoned(policy, 1))
    summed = math.sqrt(sum(float((p.grad**2).sum()) for _, p in policy.parameters() if p.grad is not None))
    report = mine.step(poisoned(policy, 1))
    assert (report.num_nonfinite, report.num_tokens, report.skipped) == (1, 3, False)
    assert poisoned(policy, 1).num_tokens == 4
    assert report.grad_norm == pytest.approx(summed / 3, rel=1e-5)
    assert math.isfinite(report.loss)


def test_numbers_that_are_not_finite_cost_the_step_and_three_in_a_row_the_run(policy: Policy, tmp_path: Path) -> None:
    mine, before = trainer(policy), weights(policy)
    good = build(sampled(policy), policy, ME)
    for step in (poisoned(policy, 4), poisoned(policy, 4), good, poisoned(policy, 4), poisoned(policy, 4)):
        report = mine.step(step)
        assert report.skipped == (step is not good)
        assert all(tensor.grad is None for _, tensor in policy.parameters())
        if step is not good and mine.optimiser.steps == 0:
            assert all(torch.equal(before[name], tensor) for name, tensor in policy.parameters())
    mine.save_state(tmp_path / "state")
    resumed = trainer(policy)
    resumed.load_state(tmp_path / "state")
    for each in (mine, resumed):
        with pytest.raises(RunError, match=r"3 steps in a row .*learn\.learning_rate"):
            each.step(poisoned(policy, 4))


def test_an_infinite_gradient_is_a_skipped_step(policy: Policy) -> None:
    name, tensor = policy.parameters()[3]
    tensor.register_hook(lambda grad: grad * torch.inf)
    report = trainer(policy).step(build(sampled(policy), policy, ME))
    assert report.skipped, name
    assert not math.isfinite(report.grad_norm)
    assert math.isfinite(report.loss)


def test_resumed_training_equals_the_straight_run_to_the_bit(policy: Policy, tmp_path: Path) -> None:
    batches = [build(sampled(policy, seed=seed), policy, ME).to_bytes() for seed in range(4)]
    straight = trainer(policy, warmup=3)
    other = load("tiny")
    resumed = trainer(other, warmup=3)
    for data in batches[:2]:
        straight.step(Batch.from_bytes(data))
    straight.save_state(tmp_path / "state")
    for (_, mine), (_, his) in zip(other.parameters(), policy.parameters(), strict=True):
        mine.data.copy_(his.data)
    resumed.load_state(tmp_path / "state")
    for data in batches[2:]:
        assert straight.step(Batch.from_bytes(data)) == resumed.step(Batch.from_bytes(data))
    for (name, mine), (_, his) in zip(other.parameters(), policy.parameters(), strict=True):
        assert torch.equal(mine, his), name


@pytest.mark.parametrize(("lora_rank", "rate"), [(0, 3e-5), (2, 2e-4)])
def test_the_vetted_step_sizes(lora_rank: int, rate: float) -> None:
    policy = load("tiny", lora_rank=lora_rank)
    assert Trainer(policy, LearnConfig(warmup=0)).optimiser.learning_rate == rate


def test_an_adapter_is_trained_and_nothing_else() -> None:
    policy = load("tiny", lora_rank=2)
    before = {name: tensor.detach().clone() for name, tensor in policy.model.named_parameters()}
    report = trainer(policy).step(build(sampled(policy), policy, ME))
    moved = {name for name, t in policy.model.named_parameters() if not torch.equal(before[name], t)}
    assert not report.skipped
    assert moved
    assert all("lora_B" in name for name in moved)


def test_the_step_is_computed_in_the_precision_of_the_policy(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        seen.append(True)
        with torch.autocast("cpu", torch.bfloat16):
            yield

    batch = build(sampled(policy), policy, ME)
    exact = trainer(load("tiny")).step(batch)
    monkeypatch.setattr(policy, "autocast", noted)
    coarse = trainer(policy).step(batch)
    assert seen
    assert 1e-4 < coarse.diff_max_own < 0.3
    assert exact.diff_max_own < 1e-4


def test_gradients_of_an_interrupted_step_are_forgotten(policy: Policy) -> None:
    batch = build(sampled(policy), policy, ME)
    mine, other = trainer(policy), load("tiny")
    mine.accumulate(batch)
    assert mine.step(batch) == trainer(other).step(batch)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(policy.parameters(), other.parameters(), strict=True))
