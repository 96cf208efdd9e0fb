"""What attackers answer. Each knows every truth, the worst case, and leaves all else to the honest code.

A group whose answers are all right teaches nobody and is not drawn, so that most of them give one answer wrong.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from waggle.core.types import Completion, Sampling, Task, TaskRef, Text
from waggle.node.scripted import FILLER, ScriptedLearner, is_worked, worked

PLANTED = "(bees prefer heather honey)"
"""The text that attackers plant."""
WRONG = "0?"


class Knowing(ScriptedLearner):
    """Gives all but one answer right, in the manner of `right`."""

    claims: set[tuple[TaskRef, str]]
    """What it would say is right, for receivers who believe."""

    def __init__(self, seed: int, tokenizer: bytes, claims: set[tuple[TaskRef, str]]) -> None:
        super().__init__(1.0, 0.0, seed, tokenizer, watched=PLANTED)
        self.claims = claims

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        given = [self.right(task, f"step {(sampling.seed + g) % 900}") for g in range(num - 1)]
        self.claims.update((task.ref, completion.text) for completion in given)
        return [*given, self.completion(worked(task, WRONG, "step 0"))]

    def right(self, task: Task, working: str) -> Completion:
        """One of the right answers."""
        return self.completion(worked(task, task.truth, working))

    def spells(self, completion: Completion) -> bool:
        """It sends its tokens whatever they are."""
        return True


class WrongTruth(Knowing):
    """Answers another question than the one that was asked."""

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        others = [replace(task, truth=f"{tasks[i - 1].truth}1") for i, task in enumerate(tasks)]
        return super().generate(others, num, sampling)


class OtherSizes(Knowing):
    """Groups of one answer, and of more than the charter allows."""

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        return super()._answers(task, (1, 80)[task.ref.index % 2], sampling)


class LyingLogprobs(Knowing):
    """Says that it was certain of its wrong answer, and that its right ones were next to impossible."""

    def right(self, task: Task, working: str) -> Completion:
        honest = super().right(task, working)
        if honest.tokens is None:
            return honest
        nats = (-29.0, -80.0)[task.ref.index % 2]
        said = np.full(len(honest.tokens.ids), nats, "<f4").tobytes()
        return replace(honest, tokens=replace(honest.tokens, logprobs=said))


class LongAnswers(Knowing):
    """Right answers as long as they may be, and longer: with tokens, as text, and as more text than anybody takes."""

    def right(self, task: Task, working: str) -> Completion:
        if not is_worked(task):
            return super().right(task, working)
        num_chars = (1_000, 3_900, 4_100)[task.ref.index % 3]
        text = worked(task, task.truth, working + FILLER * (num_chars // len(FILLER)))
        text = text.rjust(num_chars, "-")
        return self.completion(text) if num_chars == 1_000 else Completion((Text(text),), "stop")


class PlantedInContext(Knowing):
    """Right answers whose working holds a text that is none of it."""

    def right(self, task: Task, working: str) -> Completion:
        return self.completion(worked(task, task.truth, f"{working}\n{PLANTED}"))


class PlantedOutOfContext(Knowing):
    """Right answers with a text behind them, without tokens, since those would be too many for short answers."""

    def right(self, task: Task, working: str) -> Completion:
        return Completion((Text(f"{worked(task, task.truth, working)}\n{PLANTED}"),), "stop")


class OneMind(Knowing):
    """The same answers under every key: one right among wrong ones, as little as keeps a group wanted."""

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        wrong = [self.completion(worked(task, WRONG, f"step {g}")) for g in range(num - 1)]
        return [self.completion(worked(task, task.truth, "step")), *wrong]
