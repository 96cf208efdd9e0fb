"""A run that is killed at fifty random moments ends as the run that was not: same metrics, line by line.

The child is ended by an interval timer whose signal has no handler, which is as sudden as `kill -9`: in the
middle of a step, of a journal write, of a checkpoint. Processes are forked, so that torch is imported once.
"""

import asyncio
import os
import random
import signal
import time
import traceback
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config, easy_family, keys
from waggle.core.clock import SystemClock
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.runfolder import RunFolder
from waggle.node.swarm import Turns, connect, part, play_turns
from waggle.tasks.grade import Graders

ROUNDS, NODES, KILLS = 36, 2, 50
SETTINGS = config("run.checkpoint_minutes=0.004", "share.publish=all", "tasks.share_file=true", "tasks.file=x")


def play_all(path: Path) -> None:
    """Play the run in `path` to its end, from wherever it stands."""
    clock = SystemClock()
    family = easy_family(path)
    charter = charter_of([family], NODES)
    grader = Graders([family], workers=0)
    network = MemoryNetwork(0, clock)
    parts = build.Parts(SETTINGS, charter, path / build.FILES, grader, clock)
    nodes = []
    for number, key in enumerate(keys(NODES), 1):
        place = path / f"node-{number}"
        resumed = (place / "run.json").exists()
        folder = RunFolder.open(place) if resumed else RunFolder.create(place, SETTINGS, charter)
        learner, _ = build.make_learner(SETTINGS, False, lambda line: None)
        node, archive = build.make_node(parts, folder, key, learner, network.attach(key.id))
        node.resume(archive) if resumed else node.begin(archive)
        nodes.append(node)

    async def run() -> None:
        await connect(nodes)
        await play_turns(Turns(nodes, 0), lambda: False, ROUNDS, lambda node, report: None)
        await part(nodes)

    asyncio.run(run())


def in_child(path: Path, after_s: float) -> int:
    """Play in a forked process that is ended after a while; its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, after_s)
            play_all(path)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_run_equals_the_straight_run(tmp_path: Path) -> None:
    import torch

    torch.set_num_threads(1)
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    killed.mkdir()
    started = time.monotonic()
    assert in_child(straight, 0) == 0
    whole_s = time.monotonic() - started
    moments = random.Random(5)
    kills = 0
    while (status := in_child(killed, whole_s * moments.uniform(0.01, 0.08) if kills < KILLS else 0)) != 0:
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGALRM
        kills += 1
    assert kills == KILLS  # each lasts a twentieth of the run on average, its start included
    for number in range(1, NODES + 1):
        want = (straight / f"node-{number}" / "metrics.jsonl").read_bytes()
        assert want.count(b"\n") == ROUNDS
        assert (killed / f"node-{number}" / "metrics.jsonl").read_bytes() == want
