"""Grading in worker processes: a grader that hangs, dies or eats memory costs its answer and nothing else.

The worker of such an answer is replaced and the answer is None, not 0. Without workers (`workers=0`) grading
happens here, for simulations and graders that are known to be quick. The graders themselves are in
`verdicts.py`.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType

from waggle.core.codec import decode, digest
from waggle.core.errors import DecodeError, TaskError
from waggle.core.types import Family, Task, Verdict
from waggle.tasks.verdicts import BUILTIN, Job, check_grader, grade_job, grade_text, is_builtin, job_for
from waggle.tasks.worker import Setup, frame, read_frame, write_all

__all__ = ["BUILTIN", "Graders", "check_grader", "grade_text", "is_builtin"]

_START_S = 60.0
_GRACE_S = 5.0


class Graders:
    """Worker processes that grade. Example: `with Graders(charter.families) as graders: graders.grade(items)`.

    Args:
        families: what will be graded.
        workers: number of processes, started with the first answer; 0 grades in this process.
        deadline_s: longest time for one answer.
        memory_bytes: most address space of a worker.
        functions: whether families may name a Python function; for one's own tasks only.

    Raises:
        TaskError: a family names a grader that does not exist or is not allowed.
    """

    def __init__(
        self,
        families: Iterable[Family],
        workers: int = 1,
        deadline_s: float = 5.0,
        memory_bytes: int = 4 << 30,
        functions: bool = False,
    ) -> None:
        self._families = {digest(family): family for family in families}
        for family in self._families.values():
            if not is_builtin(family.grader) and not functions:
                raise TaskError(
                    f"{family.label} names the grader {family.grader!r}; of somebody else's tasks only the graders "
                    f"{', '.join(BUILTIN)} are run"
                )
            check_grader(family.grader)
        self._setup = Setup(tuple(self._families.values()), float(deadline_s), memory_bytes)
        self._idle: list[_Worker] = []
        self._num_workers = workers

    def __enter__(self) -> "Graders":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """Verdicts of completions, in order. An answer whose grader fails has the reward None.

        Equal answers to one question are graded once.
        """
        jobs = [job_for(task, text, self._families[task.ref.config]) for task, text in items]
        different = list(dict.fromkeys(jobs))
        verdicts = dict(zip(different, self._grade(different), strict=True))
        return [verdicts[job] for job in jobs]

    def _grade(self, jobs: Sequence[Job]) -> list[Verdict]:
        if not self._num_workers:
            return [grade_job(job, self._families[job.ref.config]) for job in jobs]
        verdicts: list[Verdict | None] = [None if job.answer else Verdict(0.0) for job in jobs]
        waiting = deque(i for i, verdict in enumerate(verdicts) if verdict is None)
        busy: dict[_Worker, int] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._num_workers:
                    self._assign(busy, jobs, waiting.popleft(), verdicts)
                for worker in _answered(list(busy), self._setup.deadline_s + _GRACE_S):
                    self._collect(worker, busy.pop(worker), verdicts)
        finally:
            for worker in busy:
                worker.kill()
        return [verdict or Verdict(None, error="not graded") for verdict in verdicts]

    def _assign(
        self, busy: "dict[_Worker, int]", jobs: Sequence[Job], index: int, verdicts: list[Verdict | None]
    ) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._setup)
        if worker.send(jobs[index]):
            busy[worker] = index
        else:
            verdicts[index] = worker.failure(self._setup.deadline_s)

    def _collect(self, worker: "_Worker", index: int, verdicts: list[Verdict | None]) -> None:
        verdict = worker.receive()
        if verdict is None:
            verdict = worker.failure(self._setup.deadline_s)
        else:
            self._idle.append(worker)
        verdicts[index] = verdict

    def close(self) -> None:
        """End all workers."""
        while self._idle:
            self._idle.pop().kill()


def _answered(workers: "Sequence[_Worker]", timeout_s: float) -> "list[_Worker]":
    """Workers that have something to read; all of them where none has within the time."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.output, selectors.EVENT_READ, worker)
        ready = [key.data for key, _ in selector.select(timeout_s)]
    if ready:
        return ready
    for worker in workers:
        worker.kill()
    return list(workers)


class _Worker:
    def __init__(self, setup: Setup) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from waggle.tasks.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.output = self._process.stdin.fileno(), self._process.stdout.fileno()
        started = self.send(setup) and bool(_answered([self], _START_S)) and self.receive() is not None
        if not started:
            self.kill()
            raise TaskError("a grading process did not start; `waggle doctor` says what is missing")

    def send(self, noun: Job | Setup) -> bool:
        try:
            write_all(self._input, frame(noun))
        except OSError:
            return False
        return True

    def receive(self) -> Verdict | None:
        """The next verdict; None where the worker is gone or says something else."""
        try:
            data = read_frame(self.output)
            return None if data is None else decode(Verdict, data)
        except (OSError, ValueError, DecodeError):
            return None

    def failure(self, deadline_s: float) -> Verdict:
        """Why there was no verdict. The worker is gone afterwards."""
        code = self.kill()
        if code == -signal.SIGALRM or code == -signal.SIGKILL:
            return Verdict(None, error=f"the grader took longer than {deadline_s:g} s")
        return Verdict(None, error=f"the grading process ended with code {code}")

    def kill(self) -> int:
        """End the process and everything it started; its exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return code
