"""Questions put otherwise, families that were not trained on, and how plain text is predicted."""

import math

import pytest
import torch
from msgspec.structs import replace

from tests.node.parts import charter_of
from waggle.core.types import Family, Task
from waggle.node import probes
from waggle.policy.load import load
from waggle.tasks.families import named_set
from waggle.tasks.taskset import Taskset


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return Taskset(charter_of(list(named_set("short")))).heldout("report", 6)


@pytest.mark.parametrize("how", probes.PERTURBED)
def test_a_question_put_otherwise_stays_the_same_question(tasks: list[Task], how: str) -> None:
    for task in tasks:
        put = probes.perturbed(task, how)
        assert put == probes.perturbed(task, how)
        assert (put.question, put.truth, put.ref) == (task.question, task.truth, task.ref)
        assert put.prompt[-1].content.endswith(task.prompt[-1].content)
        assert [m.role for m in put.prompt] == [m.role for m in task.prompt[-len(put.prompt) :]]
    assert any(probes.perturbed(task, how).prompt != task.prompt for task in tasks)


def test_a_question_without_examples_can_be_put_otherwise(tasks: list[Task]) -> None:
    bare = replace(tasks[0], prompt=tasks[0].prompt[-1:])
    for how in probes.PERTURBED:
        assert probes.perturbed(bare, how).prompt[-1].content.endswith(bare.prompt[0].content)


def test_unseen_families_are_none_of_the_charters_and_have_questions_enough() -> None:
    found = probes.unseen_families(charter_of(list(named_set("starter"))))
    assert [one.env for one in found] == ["products", "gcd", "letter_counting", "spell_backward"]
    assert len(Taskset(charter_of(found)).heldout("report", probes.UNSEEN * len(found))) == 100
    gcd: Family = found[1]
    assert "gcd" not in [one.env for one in probes.unseen_families(charter_of([gcd]))]


@pytest.mark.parametrize("window", [4096, 64])
def test_bits_a_byte_are_those_of_the_whole_distribution(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    policy = load("tiny")
    text = probes.prose()[:300]
    monkeypatch.setattr(probes, "_WINDOW", window)
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    size, nats = min(window, policy.context), 0.0
    with torch.inference_mode():
        for first in range(0, len(ids) - 1, size - 1):
            part = torch.tensor(ids[first : first + size])
            logprobs = policy.model(part[None]).logits[0].log_softmax(-1)
            nats -= sum(float(logprobs[i, part[i + 1]]) for i in range(len(part) - 1))
    assert probes.bits_per_byte(policy, text) == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-4)


def test_the_prose_is_plain_text_of_some_length() -> None:
    assert 4000 < len(probes.prose()) < 10_000
    assert probes.prose().isascii()
