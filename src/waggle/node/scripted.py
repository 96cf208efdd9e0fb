"""A learner without a model, for simulations and tests: a stated skill a family that grows with what it trains on.

It answers right with probability `skill` and else with a wrong number, from counter-based randomness, and a step
moves each family's skill by `rate` x (share of the batch's right answers) x (1 - skill). It sees the truth, as the
author of a simulation does. Nothing here claims to be how a language model learns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from waggle.core.codec import decode, digest_bytes, encode
from waggle.core.files import write_atomic
from waggle.core.rng import seed_for, uniforms
from waggle.core.types import Completion, Digest, Group, Noun, Sampling, Task, Text, Tokens
from waggle.node.learner import NO_RATES, Step


class Skill(Noun, frozen=True):
    """How often one family's questions are answered right."""

    config: Digest
    rate: float


class Lesson(Noun, frozen=True):
    """What a batch teaches of one family: right answers and answers."""

    config: Digest
    right: float
    answers: int


class Lessons(Noun, frozen=True):
    """A scripted batch, or a scripted state."""

    lessons: tuple[Lesson, ...] = ()
    skills: tuple[Skill, ...] = ()


class ScriptedLearner:
    """Example: `ScriptedLearner(skill=0.1, rate=0.05, seed=3)`."""

    learns = True

    def __init__(self, skill: float = 0.1, rate: float = 0.05, seed: int = 0, tokenizer: bytes = b"") -> None:
        self.model, self.tokenizer = "scripted", tokenizer
        self._start, self._rate, self._seed = skill, rate, seed
        self.skills: dict[bytes, float] = {}

    def base_digest(self) -> bytes:
        return digest_bytes("Scripted", f"{self._start} {self._rate} {self._seed}".encode())

    def describe(self) -> str:
        return f"scripted, skill {self._start} at the start"

    def skill(self, config: bytes) -> float:
        """The chance of a right answer in this family."""
        return self.skills.get(config, self._start)

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return [self._answers(task, num, sampling) for task in tasks]

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        key = seed_for("scripted", self._seed, sampling.seed, task.question)
        draws_G = uniforms(np.full(2 * num, key, np.uint64), np.arange(2 * num, dtype=np.uint64))
        chance = self.skill(task.ref.config)
        return [
            self._completion(task.truth if draws_G[g] < chance else f"{int(90 * draws_G[num + g])}?")
            for g in range(num)
        ]

    def _completion(self, text: str) -> Completion:
        tokens = None
        if self.tokenizer:
            ids = (*text.encode()[:63], 0)
            tokens = Tokens(self.tokenizer, ids, np.full(len(ids), -0.5, "<f4").tobytes())
        return Completion((Text(text),), "stop", tokens)

    def spells(self, completion: Completion) -> bool:
        tokens = completion.tokens
        return tokens is None or tokens.ids == (*completion.text.encode()[:63], 0)

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        sums: dict[bytes, tuple[float, int]] = {}
        for group in groups:
            right, answers = sums.get(group.task.ref.config, (0.0, 0))
            sums[group.task.ref.config] = (right + sum(group.rewards), answers + len(group.rewards))
        return encode(Lessons(tuple(Lesson(config, *cell) for config, cell in sorted(sums.items()))))

    def step(self, batch: bytes) -> Step:
        lessons = decode(Lessons, batch).lessons
        for lesson in lessons:
            skill = self.skill(lesson.config)
            self.skills[lesson.config] = skill + self._rate * (lesson.right / lesson.answers) * (1 - skill)
        return Step(bool(lessons), {"num_tokens": float(sum(lesson.answers for lesson in lessons))})

    def save(self, folder: Path) -> None:
        skills = tuple(Skill(config, rate) for config, rate in sorted(self.skills.items()))
        write_atomic(folder / "skills.bin", encode(Lessons((), skills)))

    def load(self, folder: Path) -> None:
        saved = decode(Lessons, (folder / "skills.bin").read_bytes())
        self.skills = {skill.config: skill.rate for skill in saved.skills}

    def export(self, folder: Path) -> None:
        self.save(folder)
