"""Nodes that run for hours while others come and go: do memory, descriptors and disk stay flat?

Real processes on the real network, in a network of their own. So that hours cost little, answers come from a server of
this program's that takes its time (`model.endpoint`); everything else is what every node does: graders, seals, pulls,
admission, pool, journal, checkpoints, events that rotate. Every `--kill` seconds one node is killed with SIGKILL and
started again by the hive. Node 1 is never killed: its figures tell of growth; the others' start anew with each kill.

python benchmarks/soak.py --minutes 120
"""

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from waggle.core.config import load
from waggle.core.events import read_lines
from waggle.core.types import Peer
from waggle.net.namespace import loopback_only
from waggle.node import build, hive
from waggle.node.hive import Hive
from waggle.node.runfolder import RunFolder
from waggle.node.session import prepare
from waggle.node.status import read_status
from waggle.swarm.charter import new_charter
from waggle.tasks.families import family

SETTINGS = (
    *("round.local=3", "round.foreign=3", "round.group_size=6", "round.refills=0", "eval.every=0", "eval.report=6"),
    *("share.publish=all", "run.checkpoint_minutes=2", "run.events_mb=0.2", "run.experience_mb=0.5"),
    *("share.pool_groups=64", "share.max_lag=16"),
)


def serve(delay_s: float) -> ThreadingHTTPServer:
    """A server that answers small sums, sometimes rightly, on a socket that nodes in another network reach."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(delay_s)
            draw = random.Random(body["seed"])
            texts = [str(draw.randint(2, 18)) for _ in range(body["n"])]
            data = json.dumps({"choices": [{"message": {"content": t}, "finish_reason": "stop"} for t in texts]})
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data.encode())

        def log_message(self, *_: object) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...  # a node that was killed while it waited

    return Quiet(("127.0.0.1", 0), Handler)


def make_nodes(path: Path, url: str, num: int) -> list[RunFolder]:
    """Run folders of nodes whose answers come from there."""
    config = load(None, [*SETTINGS, f"model.endpoint={url}", "model.name=soak"])
    keys = [build.local_key(11, number) for number in range(num)]
    sums = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)
    charter = new_charter(keys[0], "soak", [sums], created_ms=1_700_000_000_000)
    where = hive.addresses(len(keys))
    us = [Peer(key.id, ",".join(here)) for key, here in zip(keys, where, strict=True)]
    folders = []
    for number, key in enumerate(keys):
        net = config.net.model_copy(update={"listen": where[number]})
        others = [*us[:number], *us[number + 1 :]]
        mine = config.model_copy(update={"net": net})
        folder = prepare(path / f"node-{number + 1}", mine, key, charter, others)
        folder.close()
        folders.append(folder)
    return folders


def measured(member: hive.Member) -> dict[str, float]:
    """Memory, descriptors and threads of a node, and what its folder takes."""
    assert member.process is not None
    process = Path(f"/proc/{member.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    files = [file for file in member.folder.path.rglob("*") if file.is_file()]
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1000,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "disk_mb": sum(file.stat().st_size for file in files) / 1e6,
    }


def look(nodes: Hive, started_s: float) -> dict[str, object]:
    """One line of the record."""
    steady = nodes.members[0]
    rounds = [read_status(member.folder.path)[0].round for member in nodes.members]
    line: dict[str, object] = {"minute": round((time.monotonic() - started_s) / 60, 1), "rounds": rounds}
    if steady.process:
        line |= measured(steady)
    print(json.dumps(line), flush=True)
    return line


def play(folders: list[RunFolder], minutes: float, kill_s: float) -> list[dict[str, object]]:
    """Run them, kill one now and then, and look every minute."""
    chance, lines = random.Random(3), []
    started_s = time.monotonic()
    next_look_s, next_kill_s, kills = started_s + 60, started_s + 2 * kill_s, 0
    with Hive(folders, lambda text: None, apart=False) as nodes:
        while (now_s := time.monotonic()) < started_s + 60 * minutes:
            nodes.look()
            if now_s >= next_look_s:
                next_look_s += 60
                lines.append(look(nodes, started_s))
            if now_s >= next_kill_s:
                next_kill_s += kill_s
                victim = chance.choice(nodes.members[1:])
                if victim.process:
                    os.kill(victim.process.pid, signal.SIGKILL)
                    kills += 1
            time.sleep(0.5)
        nodes.stop()
        deadline_s = time.monotonic() + hive.QUIT_S
        while nodes.look() and time.monotonic() < deadline_s:
            time.sleep(0.2)
    print(f"{kills} kills")
    return lines


def consistent(folder: RunFolder) -> str:
    """Whether a node's rounds follow each other, as far back as its metrics go."""
    told = [int(line["round"]) for line in read_lines(folder.metrics_file)]
    return "consistent" if told == list(range(told[0], told[-1] + 1)) else f"NOT consistent: {told[:5]} .. {told[-5:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--kill", type=float, default=90.0, help="seconds between two kills")
    parser.add_argument("--delay", type=float, default=2.0, help="seconds that an answer takes")
    parser.add_argument("--json", type=Path, help="also write the record here")
    options = parser.parse_args()
    if not loopback_only():
        print("this system gives processes no network of their own; real nodes are measured only in one")
        return 1
    server = serve(options.delay)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as path:
        folders = make_nodes(Path(path), f"http://127.0.0.1:{server.server_address[1]}/v1", options.nodes)
        lines = play(folders, options.minutes, options.kill)
        for folder in folders:
            print(folder.path.name, consistent(folder))
    if len(lines) > 4:
        warm, last = lines[len(lines) // 4], lines[-1]
        for name in ("rss_mb", "descriptors", "threads", "disk_mb"):
            print(f"{name}: {warm[name]:.1f} after a quarter, {last[name]:.1f} at the end")
    if options.json:
        options.json.write_text(json.dumps(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
