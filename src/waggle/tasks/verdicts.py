"""From an answer to a verdict, in this process: right is 1, wrong or empty is 0, what cannot be graded is None.

Graders by name: `reasoning-gym` (the environment's own), `exact`, `number`, `choice`, `regex` and, for one's
own tasks only, a Python function `FILE.py:function` that takes (answer, truth). Families whose examples show
their working are graded on what follows the last `Answer:`, all others on the whole answer without outer
blanks. An environment's partial credit is told in the verdict's parts and earns nothing: several
environments give it to a listing of answers.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from waggle.core.errors import ConfigError, TaskError
from waggle.core.own import is_own, own_function
from waggle.core.types import MAX_TEXT_CHARS, Family, Name, Noun, Task, TaskRef, Verdict
from waggle.tasks import gym
from waggle.tasks.working import ANSWER

BUILTIN = (gym.GRADER, "exact", "number", "choice", "regex")
"""Graders that a charter of somebody else may name."""

_RIGHT = 1.0 - 1e-9
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d{1,400})?(\.\d{1,400})?([eE][+-]?\d{1,2})?(/\d{1,400})?")


class Job(Noun, frozen=True):
    """One answer to grade. Example: `Job(ref, "number", "7", "3 + 4 = 7")`."""

    ref: TaskRef
    grader: Name
    truth: str
    answer: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


def is_builtin(grader: str) -> bool:
    """Whether a charter of somebody else may name this grader."""
    return grader in BUILTIN


def check_grader(grader: str) -> None:
    """Refuse a grader that does not exist.

    Raises:
        TaskError: an unknown name, or a function that cannot be imported.
    """
    if not is_builtin(grader):
        _function(grader)


@lru_cache(maxsize=64)
def _function(grader: str) -> Callable[[str, str], float]:
    if not is_own(grader):
        raise TaskError(f"there is no grader {grader!r}; use one of {', '.join(BUILTIN)} or FILE.py:function")
    try:
        return own_function(grader)
    except ConfigError as error:
        raise TaskError(f"the grader {error}") from error


def answer_in(text: str, family: Family) -> str:
    """The part of a completion that is graded; empty where a worked answer never says `Answer:`."""
    if family.working:
        text = text.rpartition(ANSWER)[2] if ANSWER in text else ""
    return text.strip()


def job_for(task: Task, text: str, family: Family) -> Job:
    """What to grade of a completion."""
    return Job(task.ref, task.grader, task.truth, answer_in(text[:MAX_TEXT_CHARS], family))


def grade_text(task: Task, text: str, family: Family) -> Verdict:
    """The verdict on a completion, graded in this process."""
    return grade_job(job_for(task, text, family), family)


def grade_job(job: Job, family: Family) -> Verdict:
    """The verdict on an answer. Whatever the grader raises becomes a verdict of None."""
    if not job.answer:
        return Verdict(0.0)
    try:
        score = _score(job, family)
        if not math.isfinite(score):
            return Verdict(None, error=f"{job.grader} gave {score}")
    except Exception as error:  # the boundary: a grader's failure becomes data
        return Verdict(None, error=f"{type(error).__name__}: {error}"[:200])
    reward = 1.0 if score >= _RIGHT else 0.0
    return Verdict(reward, {"score": score} if 0.0 < score < _RIGHT else {})


def _score(job: Job, family: Family) -> float:
    if job.grader == gym.GRADER:
        return gym.score(family, _item(family, job.ref.seed, job.ref.index), job.answer)
    if job.grader in _SIMPLE:
        return float(_SIMPLE[job.grader](job.answer, job.truth))
    return float(_function(job.grader)(job.answer, job.truth))


@lru_cache(maxsize=64)
def _item(family: Family, seed: int, index: int) -> gym.Item:
    """The answers of a group come one after the other: their question is made once."""
    return gym.item(family, seed, index)


def grade_answer(grader: str, answer: str, truth: str) -> Verdict:
    """The verdict of a grader that needs no environment.

    Raises:
        TaskError: the grader is `reasoning-gym`, which needs one.
    """
    if grader == gym.GRADER:
        raise TaskError(f"the grader {grader!r} grades environments, not files; use one of {', '.join(BUILTIN[1:])}")
    nothing = Family("file", "file", "{}", "", grader, 0, "", 1)
    return grade_job(Job(TaskRef("file", bytes(32), 0, 0, 0), grader, truth, answer.strip()), nothing)


def _exact(answer: str, truth: str) -> bool:
    return _spaced(answer) == _spaced(truth)


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _number(answer: str, truth: str) -> bool:
    given, wanted = _parse_number(answer), _parse_number(truth)
    if wanted is None:
        raise ValueError(f"the truth {truth[:40]!r} is not a number")
    return given is not None and abs(given - wanted) <= abs(wanted) * Fraction(1, 10**9)


def _parse_number(text: str) -> Fraction | None:
    text = text.strip().removeprefix("$").removesuffix(".").replace("\u2212", "-")
    if not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    numerator, _, denominator = text.replace(",", "").partition("/")
    try:
        return Fraction(numerator) / Fraction(denominator or 1)
    except (ValueError, ZeroDivisionError):
        return None


def _choice(answer: str, truth: str) -> bool:
    return _label(answer) == _label(truth)


def _label(text: str) -> str:
    return _spaced(text).casefold().strip("\"'`*()[]{}.:,; ")


def _regex(answer: str, truth: str) -> bool:
    return re.fullmatch(truth, answer, re.DOTALL) is not None


_SIMPLE: dict[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "number": _number,
    "choice": _choice,
    "regex": _regex,
}
