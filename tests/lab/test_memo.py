"""What is shared: computed once, the same as anew, bounded; and what is not shared is made each time."""

from collections.abc import Sequence

import pytest

from waggle.core.keys import Key
from waggle.core.types import Admission, Charter, Task, Verdict
from waggle.lab.crowd import families
from waggle.lab.memo import Fresh, Kept, Memo, Remembering
from waggle.tasks.grade import Graders
from waggle.tasks.stream import Cursor


@pytest.fixture(scope="module")
def charter() -> Charter:
    return Charter("crowd", families(), 1, Admission(), 0.25, "", (), bytes(32), 0)


class Counting:
    """Grades and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Task, str]] = []
        self._graders = Graders(families(), workers=0)

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        self.asked += items
        return self._graders.grade(items)


def test_kept_results_are_computed_once_and_forgotten_oldest_first() -> None:
    calls: list[int] = []
    square = Kept(lambda number: calls.append(number) or number * number, most=2)
    assert [square(n) for n in (2, 2, 3, 2, 4, 2)] == [4, 4, 9, 4, 16, 4]
    assert calls == [2, 3, 4, 2]


def test_questions_are_the_same_remembered_or_fresh(charter: Charter) -> None:
    fresh, remembering = Fresh(charter), Remembering(charter)
    tasks, cursor = fresh.draw(b"a" * 32, Cursor(), 12)
    assert remembering.draw(b"a" * 32, Cursor(), 12) == (tasks, cursor)
    ref = tasks[0].ref
    assert remembering.regenerate(ref) is remembering.regenerate(ref)
    assert fresh.regenerate(ref) is not fresh.regenerate(ref)
    assert fresh.regenerate(ref) == remembering.regenerate(ref)


def test_answers_are_graded_once_and_alike(charter: Charter) -> None:
    tasks, _ = Fresh(charter).draw(b"a" * 32, Cursor(), 4)
    items = [(task, text) for task in tasks for text in (task.truth, "0?", f"Answer: {task.truth}", task.truth)]
    counting = Counting()
    memo = Memo(counting)
    assert memo.grade(items) == memo.grade(items) == Graders(families(), workers=0).grade(items)
    assert len(counting.asked) == len({(task.question, text) for task, text in items})
    assert {verdict.reward for verdict in memo.grade(items)} == {0.0, 1.0}


def test_signatures_are_told_apart() -> None:
    memo, key, other = Memo(Counting()), Key.from_seed(b"k" * 32), Key.from_seed(b"o" * 32)
    signature = key.sign(b"said")
    for _ in range(2):
        assert memo.verify(key.id, b"said", signature)
        assert not memo.verify(key.id, b"not said", signature)
        assert not memo.verify(other.id, b"said", signature)
