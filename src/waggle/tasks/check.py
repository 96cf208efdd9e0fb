"""Is a family fit to learn from? Its graders are tried before anybody trains.

Every question's true answer must earn 1; an empty answer, a listing of several answers and garbage must not;
two fresh processes with different PYTHONHASHSEED must make the same questions, or peers would not agree on
them; and there must be enough distinct questions to hold some out. All of it happens in those two processes,
under a deadline a family, so that a generator that hangs is a finding and not the end.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from waggle.core.clock import Clock, SystemClock
from waggle.core.codec import decode, digest
from waggle.core.errors import DecodeError, TaskError
from waggle.core.rng import seed_for
from waggle.core.types import Family, Noun, TaskRef
from waggle.tasks import gym
from waggle.tasks.files import FileQuestions
from waggle.tasks.taskset import MIN_QUESTIONS, distinct_questions
from waggle.tasks.verdicts import Job, answer_in, grade_job
from waggle.tasks.worker import frame, read_frame, write_all
from waggle.tasks.working import WORKINGS

GARBAGE = ("@#% lorem ipsum", "[[[(((", '{"a": [1,', "None", "-" * 60, "answer " * 40, "\u00e9\u0000\u2603", "1e999")
_GRACE_S = 30.0


class Report(Noun, frozen=True):
    """What `check` found. `failures` is empty where the family is fit; each is `name: what was seen`.

    Example: `Report("chain_sum", "chain_sum", (), 1000, "3 + 4 =", "7")`.
    """

    label: str
    env: str
    failures: tuple[str, ...]
    distinct: int
    """Distinct questions, counted up to 1,000; all of them for a task file."""
    question: str
    truth: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the failures, e.g. `("truth", "few")`."""
        return tuple(failure.partition(":")[0] for failure in self.failures)


class _Request(Noun, frozen=True):
    families: tuple[Family, ...]
    folder: str
    count: int
    deadline_s: float
    only_make: bool


class _Seen(Noun, frozen=True):
    made: tuple[bytes, ...]
    """A digest of each question and its truth."""
    report: Report


def check(family: Family, count: int = 20, folder: Path | None = None, deadline_s: float = 60.0) -> Report:
    """Try a family. Example: `check(family("chain_sum")).failures == ()`.

    Args:
        family: what is tried.
        count: questions whose answers are graded.
        folder: where task files are kept, for families made from one.
        deadline_s: longest time in each of the two processes.
    """
    return next(check_all((family,), count, folder, deadline_s))


def check_all(
    families: Sequence[Family], count: int = 20, folder: Path | None = None, deadline_s: float = 60.0
) -> Iterator[Report]:
    """Reports in the order of the families, as they are ready."""
    request = _Request(tuple(families), str(folder or ""), count, float(deadline_s), False)
    tried = _in_fresh_process(request, "1")
    made = _in_fresh_process(msgspec.structs.replace(request, only_make=True), "2")
    for family, first, second in zip(families, tried, made, strict=True):
        if isinstance(first, str) or isinstance(second, str):
            failure = first if isinstance(first, str) else str(second)
            yield Report(family.label, family.env, (failure,), 0, "", "")
            continue
        failures = first.report.failures
        both = list(zip(first.made, second.made, strict=False))
        if differing := sum(one != other for one, other in both):
            what = f"differs: {differing} of {len(both)} questions are others in a second process"
            failures = (what, *failures)
        yield msgspec.structs.replace(first.report, failures=failures)


def _in_fresh_process(request: _Request, hash_seed: str) -> Iterator[_Seen | str]:
    """What a process of its own saw of each family; the failure where it hung or died, the next one starts afresh."""
    left = request.families
    while left:
        with _started(msgspec.structs.replace(request, families=left), hash_seed) as process:
            assert process.stdout is not None
            for _ in left:
                seen = _next(process.stdout.fileno(), request.deadline_s + _GRACE_S)
                left = left[1:]
                if seen is None:
                    yield _why_ended(process, request.deadline_s)
                    break
                yield seen
            process.kill()


def _why_ended(process: "subprocess.Popen[bytes]", deadline_s: float) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    if process.poll() in (None, -signal.SIGALRM):
        return f"hangs: a question or its grader does not come to an end in {deadline_s:g} s"
    return f"dies: the process that tried it ended with code {process.returncode}"


def _started(request: _Request, hash_seed: str) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", "from waggle.tasks.check import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": "1"},
        bufsize=0,
    )
    assert process.stdin is not None
    write_all(process.stdin.fileno(), frame(request))
    return process


def _next(descriptor: int, timeout_s: float) -> _Seen | None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        if not selector.select(timeout_s):
            return None
    try:
        data = read_frame(descriptor)
        return None if data is None else decode(_Seen, data, 1 << 22)
    except DecodeError:
        return None


def main() -> None:
    """The process of its own."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    data = read_frame(requests)
    if data is None:
        return
    request = decode(_Request, data)
    if any(family.source == "reasoning-gym" for family in request.families):
        gym.environments()  # takes a second, which is not the first family's
    for family in request.families:
        signal.setitimer(signal.ITIMER_REAL, request.deadline_s)
        seen = _examine(family, request, SystemClock())
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_all(answers, frame(seen))


def _examine(family: Family, request: _Request, clock: Clock) -> _Seen:
    """What this process sees of a family; a fifth of the time is for making, a fifth for counting."""
    seed, start_s, share_s = seed_for("check", digest(family)), clock.passed_s(), request.deadline_s / 5
    questions = FileQuestions(Path(request.folder), family) if family.source == "file" else None
    items: list[gym.Item] = []
    failures: list[str] = []
    for index in range(request.count):
        if clock.passed_s() - start_s > share_s:
            failures.append(f"slow: {len(items)} questions took {clock.passed_s() - start_s:.0f} s")
            break
        try:
            items.append(questions.item(seed, index) if questions else gym.item(family, seed, index))
        except TaskError as error:
            failures.append(f"unmade: {error}")
            break
    made = tuple(sha256(repr((item["question"], item["answer"])).encode()).digest() for item in items)
    distinct = 0
    if items and not request.only_make:
        failures += _tried(family, seed, items)
        until_s = clock.passed_s() + share_s

        def patient() -> bool:
            return clock.passed_s() < until_s

        distinct = len(questions) if questions else distinct_questions(family, patient=patient)
        if not questions and distinct < MIN_QUESTIONS:
            failures.append(f"few: {distinct} distinct questions" if patient() else f"slow: counted {distinct} in time")
    question, truth = (items[0]["question"], str(items[0]["answer"])) if items else ("", "")
    return _Seen(made, Report(family.label, family.env, tuple(failures), distinct, question[:2000], truth[:2000]))


def _tried(family: Family, seed: int, items: Sequence[gym.Item]) -> Iterator[str]:
    """The failures, one line for each kind."""
    found: dict[str, str] = {}
    truths = [str(item["answer"]) for item in items]
    for index, item in enumerate(items):
        wrong = [("empty", ""), *(("garbage", text) for text in GARBAGE), *_listings(truths, index)]
        right = WORKINGS[family.working](item) if family.working else truths[index]
        if family.grader != "regex":
            reward, error = _reward(family, seed, index, item, right)
            if reward != 1.0:
                found.setdefault("truth", f"the true answer {right[:60]!r} earns {error or reward}")
        for name, text in wrong:
            reward, error = _reward(family, seed, index, item, text)
            if reward is None:
                found.setdefault("raises", f"{text[:30]!r} cannot be graded: {error}")
            elif reward > 0 and text != truths[index]:
                found.setdefault(name, f"{text[:60]!r} earns {reward:g}")
    return (f"{name}: {what}" for name, what in found.items())


def _listings(truths: Sequence[str], index: int) -> Iterator[tuple[str, str]]:
    """The true answer among others, neither first nor last: a grader may take the first or the last one it finds."""
    others = [truth for truth in dict.fromkeys(truths) if truth != truths[index]]
    if others:
        for between in (" ", ", ", "\n"):
            yield "listing", between.join((*others[:2], truths[index], *others[-2:]))


def _reward(family: Family, seed: int, index: int, item: gym.Item, text: str) -> tuple[float | None, str]:
    ref = TaskRef(family.env, digest(family), seed, 0, index)
    truth = "" if item["answer"] is None else str(item["answer"])
    verdict = grade_job(Job(ref, family.grader, truth, answer_in(text, family)), family)
    return verdict.reward, verdict.error
