import os
from collections.abc import Callable
from pathlib import Path

import pytest

from waggle.core.codec import digest
from waggle.core.errors import TaskError
from waggle.core.types import Family, Task, TaskRef
from waggle.tasks.grade import Graders
from waggle.tasks.stream import Cursor
from waggle.tasks.taskset import Taskset

GRADERS = """
import os, signal, sys, time
LOG = []
def fair(answer, truth): return answer == truth
def odd(answer, truth):
    if answer == "hang":
        while True: pass
    if answer == "stubborn":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        while True: time.sleep(60)
    if answer == "die": os._exit(3)
    if answer == "eat": return len(bytearray(1 << 40))
    if answer == "print": print("x" * 100_000, flush=True); os.write(1, b"garbage")
    if answer == "where": return os.environ["PYTHONHASHSEED"] == "0" and "torch" not in sys.modules
    if answer == "log": LOG.append(truth)
    if answer == "raise": raise ValueError("what?")
    return answer == truth
"""


def own(grader: str) -> Family:
    return Family("mine", "file", "{}", "0" * 64, grader, 0, "", 8)


def task_of(family: Family, truth: str = "yes") -> Task:
    return Task(TaskRef("mine", digest(family), 0, 0, 0), (), family.grader, truth, bytes(32), 8)


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    (tmp_path / "odd_graders.py").write_text(GRADERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return own("odd_graders:odd")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_verdicts_come_in_order(taskset: Taskset, workers: int) -> None:
    tasks, _ = taskset.draw(b"a" * 32, Cursor(), 30)
    items = []
    for number, task in enumerate(tasks):
        said = f"Answer: {task.truth}" if taskset.family(task.ref).working else task.truth
        items.append((task, said if number % 3 else "wrong" if number % 2 else ""))
    with Graders(taskset.families.values(), workers=workers) as graders:
        assert [verdict.reward for verdict in graders.grade(items)] == [float(n % 3 > 0) for n in range(30)]
        assert graders.grade([]) == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("hang", "the grader took longer than 0.2 s"),
        ("die", "the grading process ended with code 3"),
        ("eat", "MemoryError"),
        ("raise", "ValueError: what?"),
    ],
)
def test_one_bad_answer_costs_one_answer(odd: Family, answer: str, said: str) -> None:
    task = task_of(odd)
    with Graders([odd], workers=1, deadline_s=0.2, functions=True) as graders:
        told = graders.grade([(task, "yes"), (task, answer), (task, "no"), (task, "yes")])
    assert [verdict.reward for verdict in told] == [1.0, None, 0.0, 1.0]
    assert said in told[1].error


def test_a_grader_that_ignores_its_timer_is_killed(odd: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    from waggle.tasks import grade

    monkeypatch.setattr(grade, "_GRACE_S", 0.1)
    task = task_of(odd)
    with Graders([odd], workers=1, deadline_s=0.2, functions=True) as graders:
        told = graders.grade([(task, "stubborn"), (task, "yes")])
    assert [verdict.reward for verdict in told] == [None, 1.0]
    assert "longer than" in told[0].error


def test_what_a_grader_prints_is_not_heard_and_workers_are_all_alike(odd: Family) -> None:
    task = task_of(odd)
    with Graders([odd], functions=True) as graders:
        told = graders.grade([(task_of(odd, "print"), "print"), (task, "where"), (task, "yes")])
    assert [verdict.reward for verdict in told] == [1.0, 1.0, 1.0]


def test_whole_seconds_are_a_deadline_too() -> None:
    family = own("exact")
    with Graders([family], deadline_s=1) as graders:
        assert graders.grade([(task_of(family), "yes")])[0].reward == 1.0


def test_a_worker_killed_between_batches_is_replaced(odd: Family) -> None:
    task = task_of(odd)
    with Graders([odd], functions=True) as graders:
        assert graders.grade([(task, "yes")])[0].reward == 1.0
        os.kill(graders._idle[0]._process.pid, 9)
        graders._idle[0]._process.wait()
        told = graders.grade([(task, "no"), (task, "yes")])
    assert told[1].reward == 1.0


def test_equal_answers_to_one_question_are_graded_once(odd: Family) -> None:
    import odd_graders  # type: ignore[import-not-found]

    one, other = task_of(odd), task_of(odd, "no")
    with Graders([odd], workers=0, functions=True) as graders:
        told = graders.grade([(one, "log"), (one, "log "), (one, "yes"), (other, "log")])
    assert [verdict.reward for verdict in told] == [0.0, 0.0, 1.0, 0.0]
    assert odd_graders.LOG == ["yes", "no"]


def test_nothing_is_left_behind(odd: Family) -> None:
    task = task_of(odd)
    before = _descriptors()
    with Graders([odd], workers=2, deadline_s=0.2, functions=True) as graders:
        graders.grade([(task, "yes"), (task, "hang"), (task, "die")])
        graders.grade([(task, "yes")])
        children = [worker._process.pid for worker in graders._idle]
        assert children
    assert _descriptors() == before
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_functions_of_somebody_else_are_not_run(odd: Family) -> None:
    with pytest.raises(TaskError, match="only the graders reasoning-gym, exact"):
        Graders([odd])
    with pytest.raises(TaskError, match="there is no grader 'guess'"):
        Graders([own("guess")], functions=True)


@pytest.mark.parametrize("make", [lambda: own("exact"), lambda: own("regex")])
def test_no_process_starts_before_the_first_answer(make: Callable[[], Family]) -> None:
    family = make()
    with Graders([family]) as graders:
        assert graders.grade([(task_of(family), "")])[0].reward == 0.0, "an empty answer needs no process"
        assert not graders._idle


def test_a_pattern_that_explodes_is_stopped() -> None:
    family = own("regex")
    with Graders([family], deadline_s=0.3) as graders:
        (verdict,) = graders.grade([(task_of(family, "(a+)+$"), "a" * 40 + "b")])
    assert verdict.reward is None
