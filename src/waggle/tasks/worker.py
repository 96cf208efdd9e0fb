"""The process in which answers are graded: reads jobs, writes verdicts, dies of whatever hangs or grows.

Frames are a length of four bytes and canonical bytes; nothing is pickled. A timer of the kernel ends the
process when one answer takes too long, even where the grader is stuck in C, and the end of its input ends
it when the parent is gone.
"""

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Sequence

from waggle.core.codec import decode, digest, encode
from waggle.core.errors import DecodeError
from waggle.core.types import Family, Noun, Verdict
from waggle.tasks.verdicts import Job, grade_job

MAX_FRAME = 1 << 20
_HEADER = struct.Struct("!I")


class Setup(Noun, frozen=True):
    """The first frame: what will be graded, the limits, and where Python finds modules."""

    families: tuple[Family, ...]
    deadline_s: float
    memory_bytes: int


def frame(noun: Noun) -> bytes:
    """A noun with its length in front."""
    data = encode(noun)
    return _HEADER.pack(len(data)) + data


def read_frame(descriptor: int) -> bytes | None:
    """The next frame's content, or None at the end of the input or for a length no frame has."""
    header = _read(descriptor, _HEADER.size)
    if header is None:
        return None
    (size,) = _HEADER.unpack(header)
    return _read(descriptor, size) if size <= MAX_FRAME else None


def _read(descriptor: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size > 0:
        part = os.read(descriptor, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _limit(setup: Setup) -> None:
    import resource

    for kind, limit in (("RLIMIT_AS", setup.memory_bytes), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        with contextlib.suppress(ValueError, OSError):  # not every system has or allows each of them
            resource.setrlimit(getattr(resource, kind), (limit, limit))


def main() -> None:
    """Serve until the input ends."""
    jobs, verdicts = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # graders that print must not be heard as verdicts
        os.dup2(nothing, descriptor)
    first = read_frame(jobs)
    if first is None:
        return
    setup = decode(Setup, first)
    _warm_up(setup.families)
    _limit(setup)
    families = {digest(family): family for family in setup.families}
    write_all(verdicts, frame(Verdict(None, error="ready")))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while (data := read_frame(jobs)) is not None:
        signal.setitimer(signal.ITIMER_REAL, setup.deadline_s)
        try:
            job = decode(Job, data)
        except DecodeError:
            return
        verdict = grade_job(job, families[job.ref.config])
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_all(verdicts, frame(verdict))


def _warm_up(families: Sequence[Family]) -> None:
    """Import what grading needs before the first deadline runs."""
    from waggle.tasks import gym

    for family in families:
        if family.source == "reasoning-gym":
            gym.dataset(family, 0)


if __name__ == "__main__":
    main()
    sys.exit(0)
