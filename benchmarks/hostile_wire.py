"""Hostile peers on the real wire: what they cost honest nodes, what becomes of them, and who is hurt.

    python benchmarks/hostile_wire.py --turns 3, or --open --only frames --count 100000

Honest nodes are processes that play rounds over iroh, in a network namespace that holds loopback alone. The attacker is
a process with as many keys as it likes (each from a host of its own with `--many`), iroh and no manners. With `--open`
nobody is kept out, so that every frame is read. Attackers and nodes share the cores, so judged is an honest node's CPU.

`cpu`: CPU of a round, of which `--work` seconds are training, to that in the calm before the attack, median with
extremes; `wall`: time of a round likewise. `train`, `talk`: ms of CPU more, a round in the thread that plays them, a
second in those that talk. `rss`, `left`: MB more, at most meanwhile and afterwards. `lost`: rounds without an honest
neighbour. Faults: a word in a node's log, no round, a lost neighbour, and a share of CPU over `--most`.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.common import spread
from benchmarks.hostile_eve import ATTACKS, CHARTER, HONEST, SWARM, Eve, act, announced, bodies, mutate, names, offered
from waggle.core.clock import SystemClock
from waggle.core.codec import encode
from waggle.core.config import load
from waggle.core.events import EventLog
from waggle.core.types import Completion, Peer, Text
from waggle.net import frames, guard
from waggle.net.book import Book
from waggle.net.frames import Ping, Push, Request
from waggle.net.iroh import IrohWire
from waggle.net.namespace import loopback_only
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
from waggle.net.thread import ThreadTransport
from waggle.node.archive import NoArchive
from waggle.node.exchange import PULL, RECENT, Pull
from waggle.node.learner import Step
from waggle.node.node import Node
from waggle.node.round import play
from waggle.node.scripted import ScriptedLearner
from waggle.node.state import Record
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

Look: TypeAlias = dict[str, Any]
LATER_S, MEET_S = 3.0, 60.0
"""The time after an attack that still belongs to it; how long nodes may take to meet."""
COLUMNS = {"at": "6.2f", "train": "6.1f", "talk": "6.1f", "rss": "6.1f", "left": "6.1f"}
TITLES = f"{'attack':15s} rounds {'cpu':>21s}   wall  train   talk    rss   left  lost"


@act("knocks", keys=4)
async def knock(eve: Eve, link: Any) -> None:
    """Connections that say nothing, as many as can be made."""
    while eve.on:
        await link.wire.dial(link.victim)
        eve.told["sent"] += 1


@act("one-way")
async def one_way(eve: Eve, link: Any) -> None:
    """A stream that nobody reads."""
    stream = await link._connection.open_uni()
    eve.told["sent"] += 1
    await stream.write_all(bytes(1 << 20))
    await link._connection.closed()


@act("datagrams")
async def datagrams(eve: Eve, link: Any) -> None:
    """What nobody reads, either."""
    while eve.on:
        await link._connection.send_datagram_wait(bytes(1000))
        eve.told["sent"] += 1


@act("streams", keys=2)
async def streams(eve: Eve, link: Any) -> None:
    """Streams that are opened and given up at once."""
    while eve.on:
        stream = await link._connection.open_bi()
        await stream.send().write_all(b"R")
        await stream.send().reset(0)
        eve.told["sent"] += 1


@act("blocks", keys=4)
async def blocks(eve: Eve, link: Any) -> None:
    """As many streams as can be opened, each with as much as is taken, and none ended."""

    async def fill() -> None:
        stream = (await link._connection.open_bi()).send()
        while eve.on:
            await stream.write_all(b"R" + bytes(50_000))
            eve.told["sent"] += 1

    await asyncio.gather(*(fill() for _ in range(95)))


async def ask_all(eve: Eve, link: Any, asked: Sequence[bytes]) -> None:
    """Many requests at once, again and again."""

    async def one() -> None:
        while eve.on:
            reply = await link.ask(eve.any(asked), 16 << 20)
            why = "".join("#" if c.isdigit() else c for c in reply.body[:30].decode("utf-8", "replace"))
            eve.told["answered" if reply.fine else f"refused: {why}"] += 1

    await asyncio.gather(*(one() for _ in range(32)))


@act("junk requests")
async def junk(eve: Eve, link: Any) -> None:
    """Requests that are none."""
    whole = encode(Request(PULL, encode(Pull(SWARM, names(eve)))))
    spoiled = [mutate(whole, whole, *eve.rng.integers(1 << 31, size=3).tolist()) for _ in range(200)]
    await ask_all(eve, link, [*spoiled, bytes(100_000), encode(Request("waggle/none/1", b""))])


@act("dear requests")
async def dear(eve: Eve, link: Any) -> None:
    """What costs most to answer: all that a node offers, and one thing many times."""
    ids = [entry.id for one in await offered(link) for entry in one.entries]
    pulls = [Pull(SWARM, tuple(ids[:512])), *(Pull(SWARM, (one,) * 512) for one in ids[:4])]
    await ask_all(eve, link, [encode(Request(RECENT, SWARM)), *(encode(Request(PULL, encode(one))) for one in pulls)])


@act("slow", keys=2, stays=False)
async def slow(eve: Eve, link: Any) -> None:
    """A byte a second: of a frame, of more requests than are read at once, and of every answer."""

    async def trickle(asked: Request) -> AsyncIterator[bytes]:
        yield bytes((1,)) + (1000).to_bytes(8, "big")
        while eve.on:
            await asyncio.sleep(1)
            yield b"x"

    link.wire.answer = trickle
    await link.send([frames.write(Push(SWARM, encode(announced(eve, link, bodies(link.wire.key, 0, 2)))))])
    requests = [(await link._connection.open_bi()).send() for _ in range(30)]
    await link._sender.write_all((1 << 20).to_bytes(4, "big"))
    for _ in range(4):
        for stream in (link._sender, *requests):
            await stream.write_all(b"R")
        await asyncio.sleep(1)


@act("deaf", keys=4)
async def deaf(eve: Eve, link: Any) -> None:
    """Asks for all there is, and reads nothing."""
    ids = tuple(entry.id for one in await offered(link) for entry in one.entries)[:512]
    unread = []
    for _ in range(90):
        unread.append(await link._connection.open_bi())
        await unread[-1].send().write_all(b"R" + encode(Request(PULL, encode(Pull(SWARM, ids)))))
        await unread[-1].send().finish()
    while eve.on:
        await link.send([frames.write(Ping())])
        await asyncio.sleep(1)


class Working(ScriptedLearner):
    """A learner whose step takes a stated CPU time, without the interpreter's lock, as training does."""

    work_s = 1.0

    def step(self, batch: bytes) -> Step:
        until_s, square = time.thread_time() + self.work_s, np.ones((256, 256), np.float32)
        while time.thread_time() < until_s:
            square = square @ square / 256
        return super().step(batch)

    def _completion(self, text: str) -> Completion:
        return Completion((Text(f"the number that was asked for is {text}"),), "stop")


class Counting(NoArchive):
    """Only counts what rounds refused."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()

    def commit(self, record: Record) -> str:
        self.refused.update(json.loads(record.metrics)["refused"])
        return ""


async def honest(number: int, work_s: float, folder: Path, parent: Connection) -> None:
    """A child: meet those that it is told, play rounds until it is killed, and tell of each."""
    key, clock, archive, learner = HONEST[number], SystemClock(), Counting(), Working(0.4, 0.001, number)
    overlay = OverlayTransport(key, IrohWire(key, ("127.0.0.1:0", "[::1]:0")), clock, Book(key.id), Terms(SWARM))
    sets = ("model.name=scripted", "eval.every=0", "round.local=6", "round.foreign=6", "round.group_size=8")
    learner.work_s = work_s
    events = EventLog(folder / f"events-{number}.jsonl", clock)
    parts = (Taskset(CHARTER), load(None, sets), learner, Graders(CHARTER.families, workers=0))
    node = Node(key, *parts, ThreadTransport(overlay), clock, events, archive)
    parent.send(await node.start())
    await node.exchange.transport.join(parent.recv())
    others = {one.id for one in HONEST} - {key.id}
    while True:
        await play(node)
        look: Look = {"at": time.monotonic(), "cpu": time.process_time(), "train": time.thread_time()}
        look["rss"] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        look |= {"honest": len(others & {*overlay.peers()}), "known": sum(peer in overlay.book for peer in others)}
        look |= {"round": node.state.round, "peers": len(overlay.peers()), "book": len(overlay.book)}
        counts = {f"refused {name}": num for name, num in archive.refused.items()}
        counts |= {f"record {name}": num for name, num in overlay.book.counts.items()}
        look["counts"] = counts | {name: num for name, num in overlay.counts.items() if "_" not in name}
        parent.send(look)


async def haunt(eve: Eve, victims: list[Peer], parent: Connection) -> None:
    """A child: one attack."""
    parent.send(await eve.attack(victims))


class Child:
    """A process, what it told, and its log."""

    def __init__(self, log: Path, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        def run(parent: Connection) -> None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
            asyncio.run(work(*arguments, parent))

        fork = multiprocessing.get_context("fork")  # there are no threads here, and imports take long
        self.log, self.told = log, list[Any]()
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=run, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def looks(self, first_s: float, last_s: float) -> list[Look]:
        return [look for look in self.told[1:] if first_s <= look["at"] <= last_s]


class Swarm:
    """Honest nodes, numbered from 0 on, and a folder for their logs. They end with its `with`."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.children: list[Child] = []

    def __enter__(self) -> "Swarm":
        for number in range(self.options.nodes):
            log = self.folder / f"node-{number}.log"
            self.children.append(Child(log, honest, number, self.options.work, self.folder))
        self.wait(lambda: all(node.told for node in self.children), MEET_S)
        for node in self.children:
            node.pipe.send([other.told[0] for other in self.children if other is not node])
        num = len(self.children) - 1
        self.wait(lambda: all(len(n.told) > 3 and n.told[-1]["honest"] == num for n in self.children), MEET_S)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.process.kill()
            child.process.join()

    def wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Hear what the children tell, so long or until something is so."""
        ends_s = time.monotonic() + seconds
        while not over() and (left_s := ends_s - time.monotonic()) > 0:
            for pipe in wait([child.pipe for child in self.children], left_s):
                child = next(child for child in self.children if child.pipe is pipe)
                try:
                    child.told.append(child.pipe.recv())
                except EOFError:
                    self.children.remove(child)

    def suffer(self, name: str, turn: int) -> Look:
        """A calm stretch and an attack. What came of it."""
        calm_s, nodes = time.monotonic(), list(self.children)
        self.wait(lambda: False, self.options.calm)
        attacked_s, victims = time.monotonic(), [node.told[0] for node in nodes]
        counted = name == "frames"
        seconds, count = (self.options.longest, self.options.count) if counted else (self.options.seconds, 1 << 30)
        eve = Child(self.folder / "eve.log", haunt, Eve(name, seconds, count, turn, self.options.many), victims)
        self.children.append(eve)
        self.wait(lambda: bool(eve.told) or eve not in self.children, seconds + MEET_S)
        ended_s = time.monotonic()
        self.wait(lambda: False, LATER_S)
        rows = [_row(node, calm_s, attacked_s, ended_s, len(nodes) - 1) for node in nodes]
        said = [text for child in (*nodes, eve) if (text := child.log.read_text()[-2000:])]
        told = eve.told[-1] if eve.told else {"she died, or did not come to an end": 1}
        return {"name": name, "nodes": rows, "told": told, "seconds": ended_s - attacked_s, "said": said}


def _row(node: Child, calm_s: float, attacked_s: float, ended_s: float, others: int) -> Look:
    calm, hard = node.looks(calm_s, attacked_s), node.looks(attacked_s, ended_s)
    later = node.looks(ended_s, time.monotonic())
    if len(calm) < 2 or len(hard) < 2:
        return {"rounds": len(hard)}

    def rate(looks: list[Look], of: str, by: str) -> float:
        return float((looks[-1][of] - looks[0][of]) / (looks[-1][by] - looks[0][by]))

    before, after = Counter(calm[-1]["counts"]), Counter((later or hard)[-1]["counts"])
    after.subtract(before)
    row: Look = {"rounds": hard[-1]["round"] - hard[0]["round"], "counts": {n: c for n, c in after.items() if c}}
    row |= {name: rate(hard, name, "round") / rate(calm, name, "round") for name in ("cpu", "at")}
    row["train"] = 1000 * (rate(hard, "train", "round") - rate(calm, "train", "round"))
    talk = [rate(looks, "cpu", "at") - rate(looks, "train", "at") for looks in (calm, hard)]
    row["talk"] = 1000 * (talk[1] - talk[0])
    calm_mb = max(look["rss"] for look in calm)
    row |= {"rss": max(look["rss"] for look in hard) - calm_mb, "left": (later or hard)[-1]["rss"] - calm_mb}
    row["lost"] = sum(look["honest"] < others for look in (*hard, *later))
    return row | {"book": hard[-1]["book"], "known": hard[-1]["known"]}


def show(looks: Sequence[Look]) -> str:
    """The line of one attack, all its turns together, and below it what was counted and told."""
    rows = [row for look in looks for row in look["nodes"] if "cpu" in row]
    counts, told = Counter[str](), Counter[str]()
    for row in rows:
        counts.update(row["counts"])
    for look in looks:
        told.update(look["told"])
    line = f"{looks[0]['name']:15s} {sum(row['rounds'] for look in looks for row in look['nodes']):6d}"
    if rows:
        line += f" {spread([row['cpu'] for row in rows]):>21s}"
        line += "".join(f" {statistics.median(row[name] for row in rows):{text}}" for name, text in COLUMNS.items())
        line += f" {sum(row['lost'] for row in rows):5d}"
        book = min((row["known"], row["book"]) for row in rows)
        line += f"\n{'':16s}book: {book[0]} honest of {book[1]}"
    for title, what in (("counted", counts), ("told", told)):
        line += f"\n{'':16s}{title}: " + ", ".join(f"{name} {num}" for name, num in what.most_common(24))
    return line


def faults(looks: Sequence[Look], most: float) -> list[str]:
    """What must not be."""
    found = [f"{look['name']}: {said}" for look in looks for said in look["said"]]
    for look in looks:
        for row in look["nodes"]:
            if row["rounds"] < 2:
                found.append(f"{look['name']}: a node played {row['rounds']} rounds")
            elif row.get("cpu", 0.0) > 1 + most or row.get("lost", 0):
                found.append(f"{look['name']}: {row['cpu']:.2f} of the CPU, {row['lost']} rounds without a neighbour")
    return found


def measure(options: argparse.Namespace) -> int:
    """All attacks in turns, each on a swarm of its own; the exit status says whether there were faults."""
    looks = dict[str, list[Look]]()
    print(TITLES, flush=True)
    for turn in range(options.turns):
        for name in options.only or ATTACKS:
            with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder), options) as swarm:
                looks.setdefault(name, []).append(swarm.suffer(name, turn))
            if turn == options.turns - 1:
                print(show(looks[name]), flush=True)
    found = faults([look for some in looks.values() for look in some], options.most)
    print("\n".join(["", *found]) if found else "no faults")
    if options.json:
        options.json.write_text(json.dumps(looks, indent=1))
    return 1 if found else 0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--count", type=int, default=2000, help="mutated frames and messages")
    parser.add_argument("--longest", type=float, default=3600.0, help="seconds that they may take")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each other attack")
    parser.add_argument("--calm", type=float, default=8.0, help="seconds before each attack")
    parser.add_argument("--work", type=float, default=1.0, help="CPU seconds of a round's training")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--most", type=float, default=0.05, help="share of CPU that an attack may cost")
    parser.add_argument("--only", nargs="*", choices=sorted(ATTACKS))
    parser.add_argument("--open", action="store_true", help="nodes let everybody in, however often and after whatever")
    parser.add_argument("--many", action="store_true", help="each key comes from a host of its own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # who has threads enters no namespace
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if not loopback_only():
        print("this system gives a process no network of its own, and outside of one nothing is run here")
        return 1
    if options.open:
        guard.KNOCKS_AT_ONCE, guard.ALL_KNOCKS_AT_ONCE, guard.OUT_S = 1e9, 1e9, 0.0
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
