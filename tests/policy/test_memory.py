import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policy.parts import bundled_policy
from waggle.core.errors import ModelError
from waggle.policy import machine, memory
from waggle.policy.load import load
from waggle.policy.memory import MemoryPlan, Sizes, fit, kv_token_bytes, measure, plan

SMOLLM = Sizes("smollm2-135m", 134_515_008, 305_280, 30, 576, 1536, 46_080, 28_311_552)
GB = 10**9
HALF = memory.KV_BYTES // 2


def wanted(gb: float, **changes: object) -> MemoryPlan:
    whole = MemoryPlan(SMOLLM, 1, 1, 0, 1024, memory.KV_BYTES, int(gb * GB))
    return replace(whole, **changes)


def parts(plan: MemoryPlan) -> dict[str, int]:
    return dict(plan.parts())


def test_sizes_come_from_the_configuration() -> None:
    policy = load("tiny", lora_rank=3)
    sizes, rank = measure("tiny")
    trained = sum(tensor.numel() for _, tensor in policy.parameters())
    assert sizes.parameters == sum(tensor.numel() for _, tensor in load("tiny").parameters())
    assert (3 * sizes.per_rank, rank) == (trained, 0)
    assert (sizes.layers, sizes.hidden, sizes.intermediate) == (3, 64, 192)
    assert sizes.kv_token_bytes == kv_token_bytes(policy.model.config) == 3 * 2 * 2 * 16 * 4


def test_with_room_nothing_changes_and_the_sum_is_that_of_its_parts() -> None:
    roomy = fit(wanted(20))
    assert roomy == wanted(20)
    assert parts(roomy)["weights"] == 4 * SMOLLM.parameters
    assert parts(roomy)["moments"] == 8 * SMOLLM.parameters
    assert roomy.train_bytes > 4 * SMOLLM.parameters + roomy.activation_bytes
    assert roomy.need_bytes == sum(parts(roomy).values())


def test_with_much_room_activations_are_kept() -> None:
    roomy = fit(wanted(20, roomy=True))
    assert roomy.roomy
    assert not roomy.notes
    assert roomy.activation_bytes > 1.3 * GB
    tight = fit(wanted(4, roomy=True))
    assert replace(tight, notes=()) == wanted(4)
    assert tight.notes == (
        "activations do not all fit: early layers are computed twice, and a training step takes a third longer",
    )


def test_more_nodes_cost_weights_and_moments_and_share_what_passes() -> None:
    one, four = wanted(20), wanted(20, nodes=4)
    assert parts(four)["weights"] == 4 * parts(one)["weights"]
    assert parts(four)["moments"] == 4 * parts(one)["moments"]
    assert parts(four)["a training step"] == parts(one)["a training step"]
    assert parts(wanted(20, nodes=4, processes=4))["a training step"] == 4 * parts(one)["a training step"]


def test_adapters_share_one_base() -> None:
    four = parts(wanted(20, nodes=4, lora_rank=16))
    assert four["weights"] == 4 * SMOLLM.parameters
    assert four["adapters"] == 4 * 4 * 16 * SMOLLM.per_rank
    assert four["moments"] == 2 * four["adapters"]


@pytest.mark.parametrize(
    ("gb", "changes", "notes"),
    [
        (
            3.0,
            {"token_budget": 512, "kv_bytes": HALF},
            ["rows have 512 tokens instead of 1024", "the cache for answers"],
        ),
        (2.5, {"lora_rank": 16}, ["a LoRA adapter of rank 16 is trained instead"]),
        (2.0, {"lora_rank": 16, "kv_bytes": HALF}, ["a LoRA adapter of rank 16", "has 377 MB instead of 755 MB"]),
    ],
)
def test_what_does_not_fit_is_shrunk_and_said(gb: float, changes: dict[str, object], notes: list[str]) -> None:
    got = fit(wanted(gb))
    assert replace(got, notes=()) == wanted(gb, **changes)
    assert len(got.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, got.notes, strict=True))
    assert got.lines()[3:] == list(got.notes)


def test_a_node_with_an_adapter_fits_into_one_and_a_half_gigabytes() -> None:
    got = fit(wanted(1.5, lora_rank=16))
    assert (got.token_budget, got.kv_bytes) == (512, HALF // 2)
    assert got.activation_bytes == memory.ACTIVATION_BYTES // 2


def test_what_fits_in_no_way_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ModelError) as caught:
        fit(wanted(1.0, nodes=2))
    message = str(caught.value)
    assert message.startswith("2 x smollm2-135m does not fit into memory even at its smallest: runtime 0.60 + weights")
    assert message.endswith("of 1.00 GB; use fewer nodes, a smaller model, or raise model.memory_gb")


@given(
    st.floats(0.5, 40),
    st.integers(1, 8),
    st.sampled_from([0, 4, 64]),
    st.integers(64, 8192),
    st.booleans(),
)
def test_a_plan_fits_or_is_refused(gb: float, nodes: int, rank: int, tokens: int, on_gpu: bool) -> None:
    asked = wanted(gb, nodes=nodes, lora_rank=rank, token_budget=tokens, on_gpu=on_gpu)
    try:
        got = fit(asked)
    except ModelError:
        assert asked.need_bytes > asked.budget_bytes
        return
    assert got.need_bytes <= got.budget_bytes
    assert got.token_budget <= asked.token_budget
    assert got.kv_bytes <= asked.kv_bytes
    assert (got == asked) == (asked.need_bytes <= asked.budget_bytes) == (not got.notes)


def test_without_a_wish_nine_tenths_of_what_is_free_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 9 * GB)
    monkeypatch.setattr(machine, "resident_bytes", lambda: GB)
    assert plan("tiny", device="cpu").budget_bytes == 9 * GB
    assert plan("tiny", device="cpu", memory_gb=2.5).budget_bytes == 2.5 * GB
    assert plan("tiny", lora_rank=3).lines()[0] == "memory: 1 x tiny (0.2 M parameters, LoRA rank 3)"


MEASURED = """
import json, re, sys
import numpy as np
import reasoning_gym, torch
import waggle.node.session
from waggle.core.config import LearnConfig
from waggle.core.types import Sampling
from waggle.policy.load import load
from waggle.policy.machine import keep_heap
from waggle.policy.memory import plan
from waggle.policy.sampler import generate
from waggle.rl.batch import Batch, Example
from waggle.rl.trainer import Trainer
from tests.policy.parts import ask

torch.set_num_threads(1)  # two on a busy machine wait for each other
rank, gb = int(sys.argv[1]), float(sys.argv[2])
planned = plan("smollm2-135m", lora_rank=rank, memory_gb=gb)
policy = load("smollm2-135m", lora_rank=planned.lora_rank)
policy.kv_bytes = planned.kv_bytes
if planned.roomy:
    assert keep_heap()
learn = LearnConfig(token_budget=planned.token_budget)
trainer = Trainer(policy, learn, activation_bytes=planned.activation_bytes)
rng = np.random.default_rng(0)
length = (planned.token_budget - 100) // 8
def group():
    ids, prompt = rng.integers(5, 40000, (8, length)).astype("<i4"), rng.integers(5, 40000, 100).astype("<i4")
    old, gains = np.full(8 * length, -2, "<f4"), tuple(np.linspace(-1, 1, 8).tolist())
    return Example(prompt.tobytes(), ids.tobytes(), (length,) * 8, old.tobytes(), (False,) * 8, gains, False)
tasks = [ask(f"{i} + {i} =", f"family {i % 3}", max_tokens=4) for i in range(12)]
trainer.step(Batch((group(),)))
generate(policy, tasks, 4, Sampling(max_tokens=4, seed=1))
trainer.step(Batch((group(),)))  # beside the moments that the first step left
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([planned.need_bytes, peak]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("rank", "gb", "least"), [(0, 3.0, 0.88), (16, 1.5, 0.88), (0, 8.0, 0.8)])
def test_a_planned_node_stays_within_its_plan(rank: int, gb: float, least: float) -> None:
    bundled_policy()
    command = [sys.executable, "-c", MEASURED, str(rank), str(gb)]
    need, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak < gb * GB
    assert least * need < peak < need, f"planned {need / GB:.2f} GB, took {peak / GB:.2f} GB"
