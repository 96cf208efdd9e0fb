"""What a node is put together from."""

import asyncio
from pathlib import Path

from tests.net.test_contract import met
from tests.node.parts import charter_of, easy_family
from waggle.core.blob import DiskBlobs
from waggle.core.clock import FakeClock
from waggle.net.blobs import fetch, serve_blobs
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.tasks.files import MAX_BYTES, file_ids, missing_files
from waggle.tasks.taskset import Taskset


def test_a_swarms_task_file_travels_as_a_blob_and_its_tasks_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    charter = charter_of([easy_family(tmp_path / "a")])
    giver, taker = tmp_path / "a" / build.FILES, tmp_path / "b"
    (blob,) = missing_files(charter.families, taker)
    assert missing_files(charter.families, giver) == []

    async def story() -> None:
        clock = FakeClock()
        network = MemoryNetwork(0, clock)
        one, two = await met([network.attach(bytes([number]) * 32) for number in range(2)])
        serve_blobs(one, DiskBlobs(giver), file_ids(charter.families))
        await fetch(two, [one.id], blob, DiskBlobs(taker), clock, timeout_s=5, max_bytes=MAX_BYTES)

    asyncio.run(story())
    assert missing_files(charter.families, taker) == []
    here, there = (Taskset(charter, folder).heldout("steer", 5) for folder in (giver, taker))
    assert here == there
    assert all(task.weak for task in there)
