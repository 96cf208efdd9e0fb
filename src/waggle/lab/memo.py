"""What the nodes of one process share: questions, grades and signature checks, computed anew or once for all.

`Fresh` and plain `Graders` do for every node what a node on a machine of its own does: a question is regenerated
each time it is met, an answer graded, a signature verified. `Remembering` and `Memo` keep the results of these pure
functions, bounded, for all nodes of the process: what is decided stays the same to the last bit, only the work is done
once. Decoding is never shared: whatever comes from a peer is parsed and checked by each receiver.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from waggle.core.keys import verify
from waggle.core.types import Charter, Task, TaskRef, Verdict
from waggle.node.evaluate import Grades
from waggle.tasks.taskset import Taskset

KEPT = 1 << 15
"""Results of each kind that are kept; the oldest is forgotten first."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Results by what they are of, bounded. Example: `Kept(square, 100)(3)`."""

    def __init__(self, compute: Callable[[K], V], most: int = KEPT) -> None:
        self._compute, self._most = compute, most
        self._known: OrderedDict[K, V] = OrderedDict()

    def __call__(self, key: K) -> V:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(key)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return found


class Fresh(Taskset):
    """Questions that are made anew each time."""

    def regenerate(self, ref: TaskRef) -> Task:
        return self._make(self.family(ref), ref)


class Remembering(Taskset):
    """Questions that are made once for all nodes."""

    def __init__(self, charter: Charter) -> None:
        super().__init__(charter)
        self._made = Kept[TaskRef, Task](super().regenerate)

    def regenerate(self, ref: TaskRef) -> Task:
        return self._made(ref)


class Memo:
    """Grades and signature checks that are made once for all nodes.

    Args:
        grader: what grades an answer that is met for the first time.
    """

    def __init__(self, grader: Grades) -> None:
        self._grader = grader
        self._verdicts: OrderedDict[tuple[bytes, int, int, str], Verdict] = OrderedDict()
        self._checks = Kept[tuple[bytes, bytes, bytes], bool](lambda signed: verify(*signed))

    def grade(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """Verdicts of completions, in order."""
        known = self._verdicts
        keys = [(task.ref.config, task.ref.seed, task.ref.index, text) for task, text in items]
        new = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        for key, verdict in zip(new, self._grader.grade(list(new.values())), strict=True):
            known[key] = verdict
        verdicts = [known[key] for key in keys]
        while len(known) > KEPT:
            known.popitem(last=False)
        return verdicts

    def verify(self, peer: bytes, data: bytes, signature: bytes) -> bool:
        """Whether a peer signed these bytes."""
        return self._checks((peer, data, signature))
