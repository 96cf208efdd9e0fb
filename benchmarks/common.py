"""What the benchmarks share: the model, questions, and ratios with their spread.

Times depend on whatever else a machine does, so peers are measured side by side in one run, in turns, and the
figure is the ratio: its median over the turns with the smallest and the largest.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence

from waggle.core.keys import Key
from waggle.core.types import Family, Task
from waggle.swarm.charter import new_charter
from waggle.tasks.stream import Cursor
from waggle.tasks.taskset import Taskset


def training_tasks(families: Sequence[Family], count: int) -> list[Task]:
    """The first draws of a fixed key."""
    key = Key.from_seed(bytes(32))
    taskset = Taskset(new_charter(key, "benchmark", families, created_ms=0))
    return taskset.draw(key.id, Cursor(), count)[0]


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes."""
    gc.collect()
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def side_by_side(ours: Callable[[], float], theirs: Callable[[], float], turns: int) -> list[tuple[float, float]]:
    """Figures of both in turns, each first in every second turn, after one unmeasured turn."""
    ours()
    theirs()
    pairs = []
    for turn in range(turns):
        first = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        values = [function() for function in first]
        pairs.append((values[0], values[1]) if turn % 2 == 0 else (values[1], values[0]))
    return pairs


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and the largest. Example: `0.18 (0.17 to 0.20)`."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
