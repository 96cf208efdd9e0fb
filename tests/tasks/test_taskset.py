import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from waggle.core.errors import TaskError
from waggle.core.keys import Key
from waggle.core.types import Charter, TaskRef
from waggle.swarm.charter import new_charter
from waggle.tasks.families import family, named_set, usable
from waggle.tasks.stream import EPOCH, Cursor, ref_is_drawn
from waggle.tasks.taskset import Taskset, distinct_questions, overlap, require_distinct, show

ALICE, BOB = b"a" * 32, b"b" * 32
DUMP = """
import sys, msgspec
from waggle.core.codec import decode, digest
from waggle.core.types import Charter
from waggle.tasks.stream import Cursor
from waggle.tasks.taskset import Taskset
taskset = Taskset(decode(Charter, bytes.fromhex(sys.argv[1])))
tasks, _ = taskset.draw(b"a" * 32, Cursor(), 40)
print("".join(digest(task).hex() for task in tasks + taskset.heldout("steer", 12)))
"""


def with_families(charter: Charter, *families: object) -> Charter:
    return msgspec.structs.replace(charter, families=tuple(families))


def test_a_reference_regenerates_to_the_same_task_in_another_process(charter: Charter) -> None:
    from waggle.core.codec import digest, encode

    charter = with_families(charter, *charter.families, *usable(named_set("paper")))
    taskset = Taskset(charter)
    tasks, _ = taskset.draw(ALICE, Cursor(), 40)
    here = "".join(digest(task).hex() for task in tasks + taskset.heldout("steer", 12))
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", DUMP, encode(charter).hex()]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip() == here


def test_draws_are_the_authors_and_go_on_where_they_stopped(taskset: Taskset, charter: Charter) -> None:
    first, cursor = taskset.draw(ALICE, Cursor(), 10)
    second, end = taskset.draw(ALICE, cursor, 10)
    straight, straight_end = taskset.draw(ALICE, Cursor(), 20)
    assert first + second == straight
    assert end == straight_end
    assert len({task.ref for task in straight}) == 20, "a restart from the stored cursor replays nothing"
    assert all(ref_is_drawn(charter, taskset.digest, ALICE, task.ref) for task in straight)
    assert all(taskset.regenerate(task.ref) == task for task in straight)


def test_a_new_taskset_regenerates_what_another_drew(taskset: Taskset, charter: Charter) -> None:
    tasks, _ = taskset.draw(ALICE, Cursor(EPOCH, 5), 10)
    fresh = Taskset(charter)
    assert [fresh.regenerate(task.ref) for task in reversed(tasks)] == tasks[::-1]


def test_draws_cross_into_the_next_epoch(taskset: Taskset) -> None:
    tasks, cursor = taskset.draw(ALICE, Cursor(0, EPOCH - 3), 8)
    assert {task.ref.epoch for task in tasks} == {0, 1}
    assert cursor.epoch == 1


def test_a_node_chooses_families_and_never_indices(taskset: Taskset) -> None:
    everything, _ = taskset.draw(ALICE, Cursor(), 60)
    chosen, _ = taskset.draw(ALICE, Cursor(), 10, ["products"])
    assert [task for task in everything if task.ref.env == "products"][:10] == chosen[: len(everything)]


def test_held_out_questions_are_never_drawn(taskset: Taskset) -> None:
    trained = {task.question for author in (ALICE, BOB) for task in taskset.draw(author, Cursor(), 3000)[0]}
    steer, report = taskset.heldout("steer", 100), taskset.heldout("report", 300)
    assert overlap(trained, steer) == overlap(trained, report) == 0
    assert overlap({task.question for task in steer}, report) == 0
    assert {taskset.bucket(task) for task in report} == {"report"}
    assert overlap({report[0].question}, report) == 1
    shots = {taskset.regenerate(task.ref).prompt[:-1] for task in report}
    asked = {turn.content for prompt in shots for turn in prompt}
    assert not any(task.prompt[-1].content in asked for task in steer + report)


def test_held_out_questions_are_distinct_even_and_the_same_for_every_node(taskset: Taskset, charter: Charter) -> None:
    report = taskset.heldout("report", 60)
    assert len({task.question for task in report}) == 60
    counts = [sum(task.ref.config == config for task in report) for config in taskset.families]
    assert max(counts) - min(counts) <= 1
    assert Taskset(charter).heldout("report", 60) == report
    assert taskset.heldout("report", 30) == report[:30]


def test_families_that_share_questions_hold_different_ones_out(charter: Charter) -> None:
    shared = Taskset(with_families(charter, *(family("chain_sum", name=name) for name in ("one", "two", "three"))))
    report = shared.heldout("report", 90)
    assert len({task.question for task in report}) == 90
    assert shared.heldout("report", 50) == report[:50]


def test_all_questions_of_a_family_share_their_examples(taskset: Taskset) -> None:
    tasks, _ = taskset.draw(ALICE, Cursor(), 100)
    for config, made in taskset.families.items():
        prompts = [task.prompt for task in tasks if task.ref.config == config]
        assert len({prompt[:-1] for prompt in prompts}) == 1
        assert [turn.role for turn in prompts[0]] == ["user", "assistant"] * made.shots + ["user"]
        answers = [turn.content for turn in prompts[0] if turn.role == "assistant"]
        assert all(("Answer:" in answer) == bool(made.working) for answer in answers)
        assert len(set(answers)) == made.shots


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": bytes(32)}, "no family"),
        ({"env": "products"}, "no family"),
        ({"index": EPOCH}, "outside an epoch"),
    ],
)
def test_a_reference_to_nothing_is_refused(taskset: Taskset, change: dict[str, object], said: str) -> None:
    task = next(task for task in taskset.draw(ALICE, Cursor(), 40)[0] if task.ref.env == "chain_sum")
    with pytest.raises(TaskError, match=said):
        taskset.regenerate(msgspec.structs.replace(task.ref, **change))


def test_a_name_that_is_no_family_is_refused(taskset: Taskset) -> None:
    with pytest.raises(TaskError, match="its families are chain_sum"):
        taskset.draw(ALICE, Cursor(), 1, ["chainsum"])
    with pytest.raises(TaskError, match="its families are chain_sum"):
        taskset.heldout("steer", 1, ["chainsum"])


def test_a_charter_that_this_machine_cannot_use_is_refused(charter: Charter) -> None:
    plain = family("chain_sum")
    cases = [
        ((plain, plain), "two families"),
        ((msgspec.structs.replace(plain, version="0.0.1"),), "pip install reasoning-gym==0.0.1"),
        ((msgspec.structs.replace(plain, config='{"max_terms": 3}'),), "canonical"),
        ((msgspec.structs.replace(plain, config="[]"),), "canonical"),
        ((msgspec.structs.replace(plain, config="{"),), "not JSON"),
        ((msgspec.structs.replace(plain, working="magic"),), "does not know"),
        ((family("word_ladder"),), "PYTHONHASHSEED"),
        ((family("rush_hour"),), "no single true answer"),
    ]
    for families, said in cases:
        with pytest.raises(TaskError, match=said):
            Taskset(with_families(charter, *families))


def test_draws_end_with_an_error_where_nothing_can_be_drawn(charter: Charter, monkeypatch: pytest.MonkeyPatch) -> None:
    from waggle.tasks import taskset as module

    monkeypatch.setattr(module, "bucket", lambda question: "steer")
    with pytest.raises(TaskError, match="none of"):
        Taskset(charter).draw(ALICE, Cursor(), 1)


def test_too_few_questions_are_refused_with_the_count() -> None:
    tiny = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    assert distinct_questions(tiny) == 200
    with pytest.raises(TaskError, match="chain_sum has 200 distinct questions; 1000 are needed"):
        require_distinct([tiny])


def test_the_starter_set_has_questions_enough() -> None:
    require_distinct(named_set("starter"))


def test_show_gives_prompts_with_truths() -> None:
    (task,) = show(family("products"), 1)
    assert "Solve the following multiplication" in task.prompt[-1].content
    assert task.truth.isdigit()


def test_caches_are_bounded(charter: Charter) -> None:
    taskset = Taskset(charter)
    for index in range(EPOCH):
        ref = TaskRef("chain_sum", next(iter(taskset.families)), 11, 0, index)
        taskset.regenerate(ref)
        taskset.regenerate(msgspec.structs.replace(ref, seed=12))
    assert len(taskset._tasks) <= EPOCH


def test_a_file_family_draws_its_questions(tmp_path: Path, charter: Charter) -> None:
    from waggle.tasks.files import family_from_file

    file = tmp_path / "capitals.jsonl"
    lines = [json.dumps({"question": f"What is {n} twice?", "answer": str(2 * n)}) for n in range(400)]
    file.write_text("\n".join(lines))
    made = family_from_file(file, "number", folder=tmp_path / "kept")
    taskset = Taskset(with_families(charter, made), tmp_path / "kept")
    tasks, _ = taskset.draw(ALICE, Cursor(), 200)
    assert all(task.weak and task.grader == "number" for task in tasks)
    assert len({task.question for task in tasks}) > 150
    report = taskset.heldout("report", 20)
    assert overlap({task.question for task in tasks}, report) == 0
    with pytest.raises(TaskError, match="take fewer"):
        taskset.heldout("report", 390)


def test_heldout_questions_are_counted_as_often_as_they_are_drawn() -> None:
    sums = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)
    taskset = Taskset(new_charter(Key.from_seed(b"f" * 32), "x", [sums], created_ms=0))
    tasks, times = taskset.heldout("report", 60), taskset.frequencies("report", 60)
    assert len(tasks) == len(times) == len({task.question for task in tasks}) == 60
    easy = [times_drawn for task, times_drawn in zip(tasks, times, strict=True) if abs(int(task.truth)) < 19]
    assert sum(easy) > 2 * len(easy) - 5  # half the draws are of the 200 one-digit sums
    assert max(times) > 1
