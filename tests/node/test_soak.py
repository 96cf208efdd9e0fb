"""Three hundred rounds: memory stays flat within 2 %, and the run folder within its retention settings.

The rounds are played in a process of their own, so that what other tests hold does not blur the figure. Memory is
the resident set after a collection, from `/proc/self/statm`. It is printed at every mark: `pytest -s` shows it.
"""

import asyncio
import gc
import json
import os
import sys
import traceback
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config, easy_family, keys
from waggle.core.clock import FakeClock
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.runfolder import RunFolder
from waggle.node.swarm import Turns, connect, part, play_turns
from waggle.tasks.grade import Graders

NODES, ROUNDS, WARM, STEP = 2, 300, 60, 30
LINES_MB, EXPERIENCE_MB, RECORD_MB, MAX_LAG = 0.01, 0.02, 0.02, 16
SETTINGS = config(
    *("model.threads=1", "round.local=2", "round.foreign=2", "share.publish=all", "eval.every=25"),
    *("tasks.share_file=true", "tasks.file=x", f"share.max_lag={MAX_LAG}", "share.pool_groups=16"),
    *(
        f"run.events_mb={LINES_MB}",
        f"run.experience_mb={EXPERIENCE_MB}",
        f"run.record_mb={RECORD_MB}",
        "run.keep_checkpoints=1",
    ),
    *("run.checkpoint_minutes=0.5", "learn.learning_rate=1e-7"),  # so small that there is a signal to the end
)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def folder_bytes(path: Path) -> dict[str, int]:
    """Bytes below each entry of a run folder."""
    return {
        entry.name: sum(file.stat().st_size for file in [entry, *entry.rglob("*")] if file.is_file())
        for entry in path.iterdir()
    }


def soak(path: Path) -> None:
    """Play, and write what was measured on the way."""
    import torch

    torch.set_num_threads(1)
    clock = FakeClock()
    family = easy_family(path)
    charter = charter_of([family], NODES)
    network = MemoryNetwork(0, clock)
    parts = build.Parts(SETTINGS, charter, path / build.FILES, Graders([family], workers=0), clock)
    nodes = []
    for number, key in enumerate(keys(NODES), 1):
        folder = RunFolder.create(path / f"node-{number}", SETTINGS, charter)
        learner, _ = build.make_learner(SETTINGS, False, lambda line: None)
        node, archive = build.make_node(parts, folder, key, learner, network.attach(key.id))
        node.begin(archive)
        nodes.append(node)
    marks = []

    async def run() -> None:
        await connect(nodes)
        turns = Turns(nodes, 0, speeds=(1.0,) * NODES)
        for rounds in range(STEP, ROUNDS + 1, STEP):
            await play_turns(turns, lambda: False, rounds, lambda node, report: clock.advance(1.0))
            sizes = [folder_bytes(path / f"node-{number}") for number in range(1, NODES + 1)]
            marks.append({"round": rounds, "resident": resident_bytes(), "folders": sizes})
        await part(nodes)

    asyncio.run(run())
    steps = [node.state.step for node in nodes]
    foreign = [node.pool.counts["used"] for node in nodes]
    (path / "marks.json").write_text(json.dumps({"marks": marks, "steps": steps, "foreign": foreign}))


def in_child(path: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            soak(path)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads its memory from /proc")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_three_hundred_rounds_leave_memory_and_folder_as_they_were(tmp_path: Path) -> None:
    assert in_child(tmp_path) == 0
    told = json.loads((tmp_path / "marks.json").read_text())
    marks = {mark["round"]: mark for mark in told["marks"]}
    for number, mark in marks.items():
        total = max(sum(sizes.values()) for sizes in mark["folders"])
        print(f"round {number}: {mark['resident'] / 1e6:.1f} MB resident, {total / 1e6:.2f} MB a folder")
    assert min(told["steps"]) > 0.9 * ROUNDS
    assert min(told["foreign"]) > ROUNDS
    warm = marks[WARM]["resident"]
    assert abs(marks[ROUNDS]["resident"] - warm) <= 0.02 * warm
    for number in (ROUNDS // 2, ROUNDS):
        for sizes in marks[number]["folders"]:
            assert_bounded(sizes)
    for half, end in zip(marks[ROUNDS // 2]["folders"], marks[ROUNDS]["folders"], strict=True):
        assert sum(end.values()) <= 1.1 * sum(half.values())


def assert_bounded(sizes: dict[str, int]) -> None:
    """Each file stops at its size and one line more; one checkpoint, one journal, one model."""
    line_bytes = 4000
    for name, limit_mb in (("events", LINES_MB), ("metrics", LINES_MB), ("experience", EXPERIENCE_MB)):
        for file in (f"{name}.jsonl", f"{name}.jsonl.1"):
            assert 0 < sizes[file] <= 1e6 * limit_mb + line_bytes
    assert 0 < sizes["checkpoints"] < 4e6
    assert sizes["journal"] < 1e6
    assert 0 < sizes["model"] < 2e6
    assert 0 < sizes["arrivals.log"] <= 1e6 * RECORD_MB
    known = {"events", "metrics", "experience", "arrivals"}
    rest = {name for name in sizes if name.partition(".")[0] not in known} - {"checkpoints", "journal", "model"}
    assert rest == {"run.json", "config.toml", "charter.bin", "lock"}
