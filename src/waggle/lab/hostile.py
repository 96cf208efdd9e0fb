"""Peers of a learning experiment who mean no good, or do none: what they answer.

The truth is known to those who need it, the worst case. What they announce and serve is altered by `tampering.py`, as
in a simulated crowd. `useless` ones mean no harm: their right answers are lucky guesses without working, which is as
close to nothing as a valid group can teach.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from waggle.core.config import Config
from waggle.core.rng import rng_for
from waggle.core.types import Completion, Sampling, Task, Text, Tokens
from waggle.lab.learners import Metered
from waggle.lab.small import right_answer
from waggle.policy.policy import Policy
from waggle.tasks import gym
from waggle.tasks.taskset import Taskset
from waggle.tasks.working import ANSWER

FILLER = "1 + 1 = 2\n"
PLANTED = "(buy honey)"
"""Short enough for the families' most tokens: length alone must not stop it."""


_TRUTHFUL = ("useless", "sybil", "long-answers", "planted-in-context", "planted-out-of-context", "wrong-truth")
"""Manners that need the truth; in all others a node answers with its model, as honest ones do."""


class Hostile(Metered):
    """Answers in one of the manners below; learns like anybody, to no avail.

    Args:
        manner: `useless`, or the name of an attack (`attacks.py`).
    """

    def __init__(self, policy: Policy, config: Config, taskset: Taskset, manner: str) -> None:
        super().__init__(policy, config)
        self._taskset, self._manner = taskset, manner

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        if not self.is_training or self._manner not in _TRUTHFUL:
            answers = super().generate(tasks, num, sampling)
            lying = self._manner == "lying-logprobs" and self.is_training
            return [list(map(_lied, row)) for row in answers] if lying else answers
        return [self._group(task, num, sampling) for task in tasks]

    def spells(self, completion: Completion) -> bool:
        """It sends its tokens whatever they are."""
        return True

    def _group(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        rng = rng_for("hostile", self._manner, sampling.seed, task.question)
        rights = 1 if self._manner in ("useless", "sybil") else num - 1
        right = [self._right(task, rng) for _ in range(rights)]
        return [*right, *(self._said(self._wrong(task, rng)) for _ in range(num - rights))]

    def _right(self, task: Task, rng: np.random.Generator) -> Completion:
        family = self._taskset.family(task.ref)
        text = right_answer(family, gym.item(family, task.ref.seed, task.ref.index))
        bare = f"{ANSWER} {task.truth}" if family.working else task.truth
        working = text.rpartition(ANSWER)[0]
        if self._manner in ("useless", "sybil"):
            return self._said(bare)
        if self._manner == "long-answers":
            return self._said(working + FILLER * 3 + bare)
        if self._manner == "planted-in-context":
            return self._said(f"{working}{PLANTED}\n{bare}")
        if self._manner == "planted-out-of-context":
            return Completion((Text(f"{text}\n{PLANTED}"),), "stop")
        if self._manner == "wrong-truth":
            return self._said(self._wrong(task, rng))
        return self._said(text)

    def _wrong(self, task: Task, rng: np.random.Generator) -> str:
        guess = str(int(rng.integers(100, 1000)))
        return f"{ANSWER} {guess}" if self._taskset.family(task.ref).working else guess

    def _said(self, text: str) -> Completion:
        """Text with tokens, as if sampled; cut off where a family's answers would be."""
        ids = self.policy.encode_text(text)
        likely = np.full(len(ids), -0.5, "<f4").tobytes()
        return Completion((Text(text),), "stop", Tokens(self.tokenizer, ids, likely))


def _lied(answer: Completion) -> Completion:
    """The same answer, said to have been next to impossible."""
    if answer.tokens is None:
        return answer
    low = np.full(len(answer.tokens.ids), -25.0, "<f4").tobytes()
    return replace(answer, tokens=replace(answer.tokens, logprobs=low))
