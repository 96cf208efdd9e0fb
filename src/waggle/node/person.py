"""`waggle answer`: a person in the seat of a peer. Answers are typed, graded like all others, signed, shared as text.

A group needs two answers that differ in what they are worth for anybody to learn from it. So a person's answer is
shared beside an empty one: who reads it learns from the right one, and from nothing else (docs/algorithms.md, Loss). A
wrong one makes no group with a signal and stays here.
"""

import sys
from collections.abc import Callable, Sequence

from waggle.core.codec import digest_bytes
from waggle.core.config import PERSON
from waggle.core.types import MAX_TEXT_CHARS, Completion, Sampling, Task, Text, Verdict
from waggle.node.evaluate import Grades
from waggle.node.learner import Giver

SETTINGS = (f"model.name={PERSON}", "round.local=1", "round.group_size=2", "round.refills=0", "run.record_mb=0")
LEAVE = "/quit"
Say = Callable[[str], None]


class Left(Exception):
    """The person has left."""


class PersonLearner(Giver):
    """Fills `Learner`. Example: `PersonLearner(print, lambda: input())`.

    Args:
        say: shows a line.
        hear: gives a line that was typed; nothing at the end of the input.
    """

    def __init__(self, say: Say, hear: Callable[[], str] = lambda: sys.stdin.readline()) -> None:
        self.model, self._say, self._hear = PERSON, say, hear

    def base_digest(self) -> bytes:
        return digest_bytes("Person", b"")

    def describe(self) -> str:
        return f"you answer; {LEAVE} or the end of the input leaves, an empty line passes"

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return [self._answers(task, num) for task in tasks]

    def _answers(self, task: Task, num: int) -> list[Completion]:
        *before, question = task.prompt
        if len(before) > 1:
            example, answer = before[-2:]
            self._say(f"\nfor example: {example.content}\n  {answer.content}")
        self._say(f"\n{question.content}")
        typed = self._hear()
        if not typed or typed.strip() == LEAVE:
            raise Left("you have left; what you gave stays with your peers")
        text = typed.strip().replace("\\n", "\n")[:MAX_TEXT_CHARS]
        return [Completion((Text(said),), "stop") for said in (text, *[""] * (num - 1))]


class Telling:
    """Grades, and says what each answer is worth."""

    def __init__(self, grader: Grades, say: Say) -> None:
        self._grader, self._say = grader, say

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """See `Grades`."""
        verdicts = self._grader.grade(items)
        for (task, text), verdict in zip(items, verdicts, strict=True):
            if text:
                self._say(told(task, verdict))
        return verdicts


def told(task: Task, verdict: Verdict) -> str:
    """What an answer was worth, in words."""
    if verdict.reward is None:
        return f"that could not be graded: {verdict.error}"
    if verdict.reward == 1:
        return "right, and offered to your peers"
    return f"not right, and not shared; it is {task.truth}"
