"""A learner without a model, for simulations and tests: a stated skill a family that moves with what it trains on.

It answers right with probability `skill` and else with a wrong number, from counter-based randomness. It sees the
truth, as the author of a simulation does. Of a family's n answers in a batch let o be own ones that are right and
rewarded, f foreign ones, and w those that are rewarded and wrong. A step moves, with `rate` r,

    skill   += r (o + imitation f) / n (1 - skill) - r w / n skill
    extra   += r (o + f + w) / n (mean extra characters of the rewarded answers - extra)
    planted += r (o + f + w) / n (share of the rewarded answers that hold the watched text - planted)

`extra` and `planted` are its manners in a family whose examples show their working: how many characters it says more
than it need, and how often it says the `watched` text. An answer that its manners make longer than its family allows
is cut off, and wrong. Nothing here claims to be how a language model learns.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from waggle.core.codec import decode, digest_bytes, encode
from waggle.core.files import write_atomic
from waggle.core.rng import seed_for, uniforms
from waggle.core.types import Completion, Digest, Group, Noun, Sampling, Task, Text, Tokens
from waggle.node.learner import NO_RATES, Step
from waggle.tasks.working import ANSWER

FILLER = "well, "


class Skill(Noun, frozen=True):
    """How often one family's questions are answered right, and in what manner."""

    config: Digest
    rate: float
    extra: float = 0.0
    planted: float = 0.0


class Lesson(Noun, frozen=True):
    """What a batch teaches of one family, as sums over its answers; `right` are own ones."""

    config: Digest
    right: float
    answers: int
    foreign: float = 0.0
    wrong: float = 0.0
    extra: float = 0.0
    planted: float = 0.0


class Lessons(Noun, frozen=True):
    """A scripted batch, or a scripted state."""

    lessons: tuple[Lesson, ...] = ()
    skills: tuple[Skill, ...] = ()


@dataclass
class _Sums:
    right: float = 0.0
    answers: int = 0
    foreign: float = 0.0
    wrong: float = 0.0
    extra: float = 0.0
    planted: float = 0.0


def is_worked(task: Task) -> bool:
    """Whether the question's examples show their working, so that an answer may say more than the result."""
    return len(task.prompt) > 1 and ANSWER in task.prompt[-2].content


def worked(task: Task, result: str, working: str) -> str:
    """A result as the question wants it; `working` goes before it where there is room for it."""
    return f"{working}\n{ANSWER} {result}" if is_worked(task) else result


class ScriptedLearner:
    """Example: `ScriptedLearner(skill=0.1, rate=0.05, seed=3)`.

    Args:
        skill: in every family, at the start.
        rate: how far a step moves.
        seed: of its answers.
        tokenizer: digest of the tokenizer that it says to have, whose tokens are bytes; none where empty.
        starts: skills of families that start elsewhere, by the family's digest.
        imitation: how much a foreign right answer teaches, of what an own one does.
        watched: the text whose spread is watched; where it is given, rewarded answers are told right from wrong by the
            truth, too, and are wrong where they say anything after it.
    """

    learns = True

    def __init__(
        self,
        skill: float = 0.1,
        rate: float = 0.05,
        seed: int = 0,
        tokenizer: bytes = b"",
        *,
        starts: Mapping[bytes, float] | None = None,
        imitation: float = 1.0,
        watched: str = "",
    ) -> None:
        self.model, self.tokenizer, self.watched = "scripted", tokenizer, watched
        self._start, self._rate, self._seed, self._imitation = skill, rate, seed, imitation
        self._starts = dict(starts or {})
        self.skills: dict[bytes, Skill] = {}

    def base_digest(self) -> bytes:
        starts = "".join(f" {config.hex()} {rate}" for config, rate in sorted(self._starts.items()))
        imitation = f" x{self._imitation}" if self._imitation != 1.0 else ""
        return digest_bytes("Scripted", f"{self._start} {self._rate} {self._seed}{imitation}{starts}".encode())

    def describe(self) -> str:
        return f"scripted, skill {self._start} at the start"

    def skill(self, config: bytes) -> float:
        """The chance of a right answer in this family."""
        return self.knows(config).rate

    def knows(self, config: bytes) -> Skill:
        """Everything about one family."""
        return self.skills.get(config) or Skill(config, self._starts.get(config, self._start))

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return [self._answers(task, num, sampling) for task in tasks]

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        key = seed_for("scripted", self._seed, sampling.seed, task.question)
        draws = uniforms(np.full(3 * num, key, np.uint64), np.arange(3 * num, dtype=np.uint64)).tolist()
        mind, shows_working = self.knows(task.ref.config), is_worked(task)
        answers = []
        for g in range(num):
            text = task.truth if draws[g] < mind.rate else f"{int(90 * draws[num + g])}?"
            if shows_working:
                working = f"step {int(900 * draws[num + g])}" + FILLER * int(mind.extra / len(FILLER))
                working += f"\n{self.watched}" if draws[2 * num + g] < mind.planted else ""
                answers.append(self.completion(worked(task, text, working), task.max_tokens))
            else:
                answers.append(self.completion(text))
        return answers

    def completion(self, text: str, max_tokens: int = 0) -> Completion:
        """A text as an answer; cut off where it has more tokens than there may be (0: as many as it likes)."""
        cut = 0 < max_tokens < len(text.encode()) + 1
        text = text.encode()[:max_tokens].decode(errors="ignore") if cut else text
        tokens = None
        if self.tokenizer:
            ids = (*text.encode(),) if cut else (*text.encode(), 0)
            tokens = Tokens(self.tokenizer, ids, _LOGPROB * len(ids))
        return Completion((Text(text),), "length" if cut else "stop", tokens)

    def spells(self, completion: Completion) -> bool:
        tokens = completion.tokens
        end = (0,) if completion.finish == "stop" else ()
        return tokens is None or tokens.ids == (*completion.text.encode(), *end)

    def pack(self, groups: Sequence[Group], me: bytes, rates: Mapping[bytes, float] = NO_RATES) -> bytes:
        sums: defaultdict[bytes, _Sums] = defaultdict(_Sums)
        for group in groups:
            family, shows_working = sums[group.task.ref.config], is_worked(group.task)
            for rollout in group.rollouts:
                reward, text = rollout.verdict.reward, rollout.completion.text
                if reward is None:
                    continue
                family.answers += 1
                if not reward:
                    continue
                if shows_working:
                    family.extra += max(0, len(text) - len(ANSWER) - len(group.task.truth) - len("\nstep 900"))
                    family.planted += bool(self.watched) and self.watched in text
                if self.watched and text.rpartition(ANSWER)[2].strip() != group.task.truth:
                    family.wrong += reward
                elif group.author == me:
                    family.right += reward
                else:
                    family.foreign += reward
        lessons = (Lesson(config, **vars(cell)) for config, cell in sorted(sums.items()) if cell.answers)
        return encode(Lessons(tuple(lessons)))

    def step(self, batch: bytes) -> Step:
        lessons = decode(Lessons, batch).lessons
        for lesson in lessons:
            self.skills[lesson.config] = self._taught(lesson)
        return Step(bool(lessons), {"num_tokens": float(sum(lesson.answers for lesson in lessons))})

    def _taught(self, lesson: Lesson) -> Skill:
        mind, rate = self.knows(lesson.config), self._rate
        useful, rewarded = lesson.right + self._imitation * lesson.foreign, lesson.right + lesson.foreign + lesson.wrong
        skill = mind.rate + rate * (useful / lesson.answers) * (1 - mind.rate)
        skill -= rate * (lesson.wrong / lesson.answers) * mind.rate
        if not rewarded:
            return replace(mind, rate=skill)
        pull = rate * rewarded / lesson.answers
        extra = mind.extra + pull * (lesson.extra / rewarded - mind.extra)
        planted = mind.planted + pull * (lesson.planted / rewarded - mind.planted)
        return Skill(lesson.config, skill, extra, planted)

    def save(self, folder: Path) -> None:
        write_atomic(folder / "skills.bin", encode(Lessons((), tuple(self.skills[c] for c in sorted(self.skills)))))

    def load(self, folder: Path) -> None:
        saved = decode(Lessons, (folder / "skills.bin").read_bytes())
        self.skills = {skill.config: skill for skill in saved.skills}

    def export(self, folder: Path) -> None:
        self.save(folder)

    def return_to(self, folder: Path) -> None:
        self.load(folder)

    def prose_bits(self) -> float:
        return 0.0


_LOGPROB = np.array([-0.5], "<f4").tobytes()
