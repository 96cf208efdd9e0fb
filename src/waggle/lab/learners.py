"""What the nodes of an experiment learn with: the real model learner with a meter, and the controls beside it.

`Metered` counts what training costs. `Truth` trains on the regenerated truth and answers nothing: what a sceptic asks
for first, since whoever can check an answer can also look it up. `Replay` trains on own groups of earlier rounds where
others train on peers'.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from waggle.core.config import Config
from waggle.core.rng import rng_for
from waggle.core.types import Completion, Group, Sampling, Task, Text
from waggle.node.learner import NO_RATES, ModelLearner
from waggle.policy.policy import Policy
from waggle.rl.batch import Batch, Example
from waggle.tasks.working import ANSWER


class Metered(ModelLearner):
    """A language model and what its training has cost. `is_training` is off while it is only asked."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config)
        self.is_training = True
        self.num_parameters = sum(tensor.numel() for _, tensor in policy.parameters())
        self.read_tokens = self.generated_tokens = 0
        """Prompt tokens and drawn tokens of answers that were made for training."""

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        answers = super().generate(tasks, num, sampling)
        if self.is_training:
            self.read_tokens += sum(len(self.policy.encode_prompt(task.prompt)) for task in tasks)
            self.generated_tokens += sum(len(c.tokens.ids) for row in answers for c in row if c.tokens)
        return answers

    def flops(self, computed_tokens: float) -> float:
        """Floating-point operations of training so far; `computed_tokens` went through the model in steps."""
        return self.num_parameters * (2 * (self.read_tokens + self.generated_tokens) + 6 * computed_tokens)


class Truth(Metered):
    """Supervised training on the truth of the questions that are drawn; nothing is generated."""

    def __init__(self, policy: Policy, config: Config, worked: Sequence[bytes]) -> None:
        super().__init__(policy, config)
        self._worked, self._asked = set(worked), list[Task]()

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        if not self.is_training:
            return super().generate(tasks, num, sampling)
        self._asked += tasks
        return [[Completion((Text(""),), "stop")] * num for _ in tasks]

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        examples = tuple(map(self._example, self._asked))
        self._asked = []
        return Batch(examples).to_bytes()

    def _example(self, task: Task) -> Example:
        text = f"{ANSWER} {task.truth}" if task.ref.config in self._worked else task.truth
        prompt = np.asarray(self.policy.encode_prompt(task.prompt), "<i4")
        ids = np.asarray(self.policy.encode_text(text), "<i4")
        old = np.zeros(len(ids), "<f4").tobytes()
        return Example(prompt.tobytes(), ids.tobytes(), (len(ids),), old, (False,), (1.0,), False)


class Replay(Metered):
    """Trains on own groups of earlier rounds beside the new ones, each once; they count as foreign in the loss."""

    def __init__(self, policy: Policy, config: Config, num: int, seed: int) -> None:
        super().__init__(policy, config)
        self._num, self._seed, self._old, self._round = num, seed, list[Group](), 0

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        self._round += 1
        order = rng_for("replay", self._seed, me, self._round).permutation(len(self._old))[: self._num]
        chosen = sorted(order.tolist())
        again = [replace(self._old[i], author=bytes(32)) for i in chosen]
        self._old = [group for i, group in enumerate(self._old) if i not in set(chosen)] + list(groups)
        return super().pack([*groups, *again], me, rates)
