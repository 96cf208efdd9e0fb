"""Learners: what they accept as spelled, batches that replay to the bit, weights that come back, lineage."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.node.parts import config
from waggle.core.codec import decode
from waggle.core.types import (
    Completion,
    Group,
    Message,
    PolicyRef,
    Rollout,
    Sampling,
    Task,
    TaskRef,
    Text,
    Tokens,
    Verdict,
)
from waggle.node import build
from waggle.node.learner import Learner, ModelLearner, lineage, policy_ref
from waggle.node.scripted import Lessons, ScriptedLearner

ME, OTHER = b"m" * 32, b"o" * 32


def model_learner(*sets: str) -> ModelLearner:
    settings = config("learn.warmup=0", "learn.learning_rate=0.01", *sets)
    return ModelLearner(build.load_policy(settings), settings)


def scripted() -> ScriptedLearner:
    return ScriptedLearner(0.3, 0.1, 2, tokenizer=b"t" * 32)


MAKERS: dict[str, Callable[[], Learner]] = {
    "full": model_learner,
    "lora": lambda: model_learner("model.lora_rank=4"),
    "scripted": scripted,
}


def tasks(num: int = 2) -> list[Task]:
    return [
        Task(TaskRef("e", b"c" * 32, 0, 0, i), (Message("user", f"{i} + 1 ="),), "exact", f"{i}", bytes([i]) * 32, 6)
        for i in range(num)
    ]


def groups(learner: Learner, author: bytes = ME, seed: int = 0) -> list[Group]:
    """Own answers, every second one right."""
    policy = policy_ref(learner, learner.base_digest(), 0)
    sampling = Sampling(max_tokens=6, seed=seed)
    return [
        Group(
            task,
            policy,
            sampling,
            tuple(Rollout(c, Verdict(float(i % 2))) for i, c in enumerate(row)),
            author,
            1,
            bytes([n + 1]) * 32,
        )
        for n, (task, row) in enumerate(zip(tasks(), learner.generate(tasks(), 4, sampling), strict=True))
    ]


def test_what_a_model_says_it_spells() -> None:
    learner = model_learner()
    rows = learner.generate(tasks(), 16, Sampling(max_tokens=6, seed=1))
    said = [completion for row in rows for completion in row]
    assert sum(learner.spells(completion) for completion in said) > 20
    for completion in said:
        assert completion.tokens is not None
        hidden = learner._special.intersection(completion.tokens.ids[:-1])  # a random model samples some
        assert learner.spells(completion) is not bool(hidden)


def spelled(learner: ModelLearner, text: str, finish: str = "stop") -> list[int]:
    return list(learner.policy.encode_text(text, "stop" if finish == "stop" else "length"))


@pytest.mark.parametrize(
    ("text", "finish", "change", "good"),
    [
        ("12", "stop", lambda ids, stop: ids, True),
        ("12", "length", lambda ids, stop: ids, True),
        ("", "stop", lambda ids, stop: ids, True),
        ("13", "stop", lambda ids, stop: [ids[0], ids[1] + 1, ids[2] if len(ids) > 2 else stop][:3], False),
        ("12", "stop", lambda ids, stop: ids[:-1], False),  # it says that it ended and did not
        ("12", "length", lambda ids, stop: [*ids, stop], False),  # it ended and says that it did not
        ("12", "stop", lambda ids, stop: [*ids, stop], False),  # two ends
        ("12", "stop", lambda ids, stop: [stop, *ids], False),  # an end at the beginning
        ("12", "stop", lambda ids, stop: [ids[0], 0, *ids[1:]], False),  # a special token in the middle
        ("12", "length", lambda ids, stop: [*ids, 10_000], False),  # no such id
        ("12", "length", lambda ids, stop: [*ids, 2**31 - 1], False),
        ("", "length", lambda ids, stop: [], False),
    ],
)
def test_ids_must_spell_the_text(
    text: str, finish: str, change: Callable[[list[int], int], Sequence[int]], good: bool
) -> None:
    learner = model_learner()
    stop = learner.policy.stop_ids[0]
    ids = tuple(change(spelled(learner, text, finish), stop))
    tokens = Tokens(learner.tokenizer, ids)
    completion = Completion((Text(text),), "stop" if finish == "stop" else "length", tokens)
    assert learner.spells(completion) is good


def test_text_alone_needs_no_spelling() -> None:
    for learner in (model_learner(), scripted()):
        assert learner.spells(Completion((Text("anything"),), "stop"))


@pytest.mark.parametrize("kind", MAKERS)
def test_batches_are_bytes_and_equal_ones_teach_equally(kind: str) -> None:
    one, two = MAKERS[kind](), MAKERS[kind]()
    assert one.base_digest() == two.base_digest()
    batch = one.pack(groups(one), ME)
    assert batch == two.pack(groups(two), ME)
    assert one.step(batch) == two.step(batch)
    assert one.generate(tasks(), 4, Sampling(max_tokens=6)) == two.generate(tasks(), 4, Sampling(max_tokens=6))
    assert one.pack(groups(one, seed=5), ME) == two.pack(groups(two, seed=5), ME)


def tensors(file: Path) -> dict[str, bytes]:
    """What a file holds; the order of a safetensors header is left to chance."""
    if file.suffix != ".safetensors":
        return {"": file.read_bytes()}
    return {name: tensor.tobytes() for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_loaded_learner_goes_on_as_the_saved_one(kind: str, tmp_path: Path) -> None:
    straight, saved, loaded = MAKERS[kind](), MAKERS[kind](), MAKERS[kind]()
    batches = [straight.pack(groups(straight, seed=seed), ME) for seed in range(4)]
    steps = [straight.step(batch) for batch in batches]
    for batch in batches[:2]:
        saved.step(batch)
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert [loaded.step(batch) for batch in batches[2:]] == steps[2:]
    again, end = tmp_path / "again", tmp_path / "end"
    again.mkdir()
    end.mkdir()
    loaded.save(again)
    straight.save(end)
    names = sorted(file.name for file in end.iterdir())
    assert names
    for name in names:
        assert tensors(again / name) == tensors(end / name)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_base_stays_what_it_was(kind: str) -> None:
    learner = MAKERS[kind]()
    base = learner.base_digest()
    learner.step(learner.pack(groups(learner), ME))
    assert learner.base_digest() == base == MAKERS[kind]().base_digest()


@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_to_learn_from_moves_nothing(kind: str) -> None:
    learner = MAKERS[kind]()
    before = learner.generate(tasks(), 4, Sampling(max_tokens=6))
    step = learner.step(learner.pack([], ME))
    assert not step.moved
    assert step.numbers["num_tokens"] == 0
    assert learner.generate(tasks(), 4, Sampling(max_tokens=6)) == before


def test_an_exported_model_answers_as_the_one_it_came_from(tmp_path: Path) -> None:
    from waggle.policy.load import load
    from waggle.policy.sampler import generate

    learner = model_learner()
    learner.step(learner.pack(groups(learner), ME))
    learner.export(tmp_path)
    sampling = Sampling(max_tokens=6, seed=9)
    answers = learner.generate(tasks(), 4, sampling)
    assert generate(load(str(tmp_path)), tasks(), 4, sampling) == answers
    assert answers != model_learner().generate(tasks(), 4, sampling)


def test_what_is_foreign_is_marked_in_the_batch() -> None:
    from waggle.rl.batch import Batch

    learner = model_learner()
    mixed = [groups(learner)[0], groups(learner, OTHER)[1]]
    batch = Batch.from_bytes(learner.pack(mixed, ME))
    assert [example.foreign for example in batch.examples] == [False, True]


def test_a_lineage_commits_to_the_base_and_every_batch_in_order() -> None:
    base = b"b" * 32
    ends = {lineage(lineage(base, x), y) for x in (b"1", b"2", b"3") for y in (b"1", b"2", b"3")}
    assert len(ends) == 9
    assert lineage(base, b"1") != lineage(b"c" * 32, b"1")
    assert policy_ref(scripted(), base, 4) == PolicyRef("scripted", base, 4)


def test_a_scripted_learner_gets_better_by_right_answers() -> None:
    learner = scripted()
    batch = learner.pack(groups(learner), ME)
    (lesson,) = decode(Lessons, batch).lessons
    assert (lesson.right, lesson.answers) == (4.0, 8)
    learner.step(batch)
    assert learner.skill(b"c" * 32) == pytest.approx(0.3 + 0.1 * 0.5 * 0.7)
    assert learner.skill(b"d" * 32) == 0.3
