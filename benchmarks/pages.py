"""What do open pages cost a node? Its time a round with and without many pages on its run, in turns.

A node with a tiny model plays rounds in a process of its own; `waggle dash` shows its folder in another; the pages are
open connections of a third that read all they are sent. Peer: the same node without the page.

python benchmarks/pages.py --pages 200
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import spread

from waggle.core.clock import SystemClock
from waggle.core.config import load
from waggle.core.events import read_lines
from waggle.core.process import end_with_parent
from waggle.net.memory import MemoryNetwork
from waggle.node import build
from waggle.node.round import play
from waggle.node.session import open_node, prepare
from waggle.swarm.charter import new_charter
from waggle.tasks.families import family

SETTINGS = (
    *("model.name=tiny", "model.threads=1", "round.local=4", "round.foreign=0", "round.group_size=8"),
    *("round.refills=0", "eval.every=0", "eval.report=6", "run.record_mb=0"),
)


def play_on(path: Path) -> None:
    """Rounds without end."""
    end_with_parent()
    from rich.console import Console

    key = build.local_key(0, 0)
    charter = new_charter(key, "pages", [family("chain_sum", {}, max_tokens=24)], created_ms=0)
    folder = prepare(path, load(None, list(SETTINGS)), key, charter, [])
    network = MemoryNetwork(0, SystemClock())
    session = open_node(Console(quiet=True), folder, path, transport=network.attach(key.id))

    async def rounds() -> None:
        await session.node.start()
        while True:
            await play(session.node)

    asyncio.run(rounds())


def read_pages(port: int, count: int) -> None:
    """Pages that read all they are sent."""
    end_with_parent()

    async def page() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        while await reader.read(1 << 16):
            pass

    async def pages() -> None:
        await asyncio.gather(*(page() for _ in range(count)))

    asyncio.run(pages())


def seconds_a_round(path: Path, from_round: int) -> tuple[float, int]:
    """The mean since a round, and the last round."""
    told = [
        line for line in read_lines(path / "events.jsonl") if line["event"] == "round" and line["round"] > from_round
    ]
    return statistics.fmean(line["seconds"] for line in told), int(told[-1]["round"])


def last_round(path: Path) -> int:
    """How far the node is."""
    return max((int(line["round"]) for line in read_lines(path / "metrics.jsonl")), default=0)


def turn(path: Path, pages: int, turn_s: float) -> float:
    """Seconds a round over a turn with so many pages; 0 is without the page."""
    context = multiprocessing.get_context("spawn")
    if not pages:
        start = last_round(path)
        time.sleep(turn_s)
        return seconds_a_round(path, start)
    command = [sys.executable, "-m", "waggle", "dash", str(path), "--port", "0", "--tied"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dash:
        assert dash.stdout is not None
        port = int(dash.stdout.readline().partition("127.0.0.1:")[2].partition(";")[0])
        readers = context.Process(target=read_pages, args=(port, pages), daemon=True)
        readers.start()
        time.sleep(8)  # until all are connected and have what there was
        start = last_round(path)
        time.sleep(turn_s)
        took = seconds_a_round(path, start)
        readers.kill()
        dash.kill()
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        node = multiprocessing.get_context("spawn").Process(target=play_on, args=(path,), daemon=True)
        node.start()
        while last_round(path) < 20:
            time.sleep(1)
        pairs = [
            (turn(path, options.pages, options.seconds), turn(path, 0, options.seconds)) for _ in range(options.turns)
        ]
        node.kill()
    ratios = [with_pages / without for with_pages, without in pairs]
    print(json.dumps({"pages": options.pages, "seconds a round": [list(pair) for pair in pairs]}))
    print(f"time a round with {options.pages} pages, of that without: {spread(ratios)}")


if __name__ == "__main__":
    main()
