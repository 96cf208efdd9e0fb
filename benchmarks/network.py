"""The network on real connections: how fast and surely messages spread, what an uplink carries, what a kill does.

    python benchmarks/network.py --nodes 20 --uplink 8 32 100 --endpoints 100 --churn 20 --json network.json

Every node is a process of its own with an iroh endpoint (above `ALONE` nodes, `TOGETHER` share a process), inside a
network namespace that holds loopback and nothing else; where none can be had, nothing runs. The peer is the same
overlay as a plain flood: every message is pushed to every neighbour, whatever its size. Both play in turns, and a
ratio is ours to the flood's in one turn; the smallest messages are pushed by both, so their ratio is the noise.

`worst` is the share that the node heard which heard least. `p50`, `p99`: ms from when a message was due at its
publisher until a subscriber read it, so a publisher that cannot keep up shows. `cpu`: ms of all processes for a
delivery. `link`: all that crossed loopback (frames, digests, pings, acknowledgements, headers; packets that the kernel
groups share one) by node, message, and byte of message; `data`: messages alone, as the transport counts them; `most`:
the same of the busiest node. `rss`, `peak`: MB of a node's memory. Left out: loss and distance. All nodes share one
machine's cores, so times are those of a very busy node.
"""

import argparse
import asyncio
import itertools
import json
import os
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from waggle.net.namespace import loopback_only

if TYPE_CHECKING:  # numpy starts threads, and who has threads enters no namespace: imported where it is used
    from waggle.net.overlay import OverlayTransport
    from waggle.net.transport import Subscription

RATES = {512: 12.0, 4096: 12.0, 65536: 5.0}
"""Messages a second in a swarm of at most `BASE` nodes, by size in bytes; in a larger one in proportion less."""
BASE, ALONE, TOGETHER, KNOWN, EAGER = 20, 40, 10, 4, 1024
TOPIC, LINE_BYTES = b"benchmark", 1 << 26
HEAD = struct.Struct(">IIQ")
"""Of a message: its phase, its number there, and when it was due, in ns of the clock that all processes share."""
LEAD_S, MEET_S, QUIET_S, SETTLE_S = 0.3, 20.0, 5.0, 20.0
"""A phase ends when everybody heard everything, nothing came for so long, or so long after its last message."""
LATER_S, ASK_S, IMPORT_S = 10.0, 30.0, 120.0
TROUBLES = ("dropped", "rejected", "unheard", "lost", "silent", "other-protocol", "double")
FORMATS = "nodes:5d size:6d delivered:9.2% worst:8.2% p50:7.1f p99:7.1f cpu:6.2f link:6.2f data:6.2f most:6.2f rss:5.0f"
CELLS = [cell.split(":") for cell in f"{FORMATS} peak:5.0f".split()]
TITLES = " " * 14 + "".join(f" {name:>{int(text[0])}s}" for name, text in CELLS)

Look: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Plan: TypeAlias = list[tuple[int, int, int]]
"""Messages to publish: when (ns), author, number."""


class Host:
    """The nodes of one process, and what they heard. Its public methods are commands, in JSON."""

    def __init__(self) -> None:
        self._nodes: dict[int, OverlayTransport] = {}
        self._late_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._heard: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """By phase, how many messages each node heard."""
        self._seen: set[tuple[int, int, int]] = set()
        self._doubles: Counter[int] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, first: int, num: int, flood: bool) -> list[str]:
        """Nodes that listen. Returns their addresses."""
        from waggle.core.clock import SystemClock
        from waggle.core.keys import Key
        from waggle.net import spread
        from waggle.net.book import Book
        from waggle.net.iroh import IrohWire
        from waggle.net.overlay import OverlayTransport
        from waggle.net.transport import Ruling, address_text

        if flood:
            spread.EAGER_BYTES = 1 << 30
        for number in range(first, first + num):
            key = Key.from_seed(number.to_bytes(32, "big"))
            wire = IrohWire(key, ("127.0.0.1:0", "[::1]:0"))
            self._nodes[number] = node = OverlayTransport(key, wire, SystemClock(), Book(key.id))
            self._begin(self._listen(number, node.subscribe(TOPIC, lambda _, data: Ruling.FORWARD)))
        starts = (self._nodes[number].start() for number in range(first, first + num))
        return [address_text(peer) for peer in await asyncio.gather(*starts)]

    async def join(self, through: list[list[str]]) -> None:
        """Each node through its own list."""
        from waggle.net.transport import read_address

        pairs = zip(self._nodes.values(), through, strict=True)
        await asyncio.gather(*(node.join([read_address(one) for one in known]) for node, known in pairs if known))

    async def play(self, phase: int, size: int, plan: Plan) -> None:
        """Publish in the background."""
        self._begin(self._publish(phase, size, plan))

    async def _publish(self, phase: int, size: int, plan: Plan) -> None:
        for due_ns, author, number in plan:
            await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            head = HEAD.pack(phase, number, due_ns)
            await self._nodes[author].publish(TOPIC, head + os.urandom(size - len(head)))

    async def tally(self, phase: int) -> int:
        """Deliveries of a phase so far."""
        return self._heard[phase].total()

    async def look(self, phase: int) -> Look:
        """All that was counted; memory in MB."""
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        fields = {line[0]: line[1] for line in lines if len(line) > 1}
        return {
            "rss": int(fields["VmRSS:"]) / 1024,
            "peak": int(fields["VmHWM:"]) / 1024,
            "threads": int(fields["Threads:"]),
            "cpu_s": time.process_time(),
            "counts": [
                {**node.counts, "peers": len(node.peers()), "double": self._doubles[number]}
                for number, node in self._nodes.items()
            ],
            "numbers": list(self._nodes),
            "heard": list(self._heard[phase].items()),
            "late_ms": self._late_ms[phase],
        }

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _listen(self, me: int, inbox: "Subscription") -> None:
        async for delivery in inbox:
            now_ns = time.monotonic_ns()
            phase, number, due_ns = HEAD.unpack_from(delivery.data)
            self._doubles[me] += (me, phase, number) in self._seen
            self._seen.add((me, phase, number))
            self._heard[phase][me] += 1
            self._late_ms[phase].append((now_ns - due_ns) / 1e6)


async def obey() -> None:
    """A child: answer commands, a line of JSON each, until the parent closes the pipe or is no more."""
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    host = Host()
    while line := await lines.readline():
        command = json.loads(line)
        print(json.dumps(await getattr(host, command.pop("do"))(**command)), flush=True)
    os._exit(0)  # without goodbyes: the swarm ends as a whole


@dataclass(frozen=True, eq=False)
class Child:
    """A process with nodes, seen from the parent."""

    process: asyncio.subprocess.Process
    numbers: range

    async def ask(self, do: str, timeout_s: float = ASK_S, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout_s)
        if not line:
            raise RuntimeError(f"the process of {self.numbers} ended when asked to {do}; what it said is above")
        return json.loads(line)


async def _begin(numbers: range) -> Child:
    pipe, command = asyncio.subprocess.PIPE, (sys.executable, __file__, "--child")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
    return Child(process, numbers)


def total(looks: list[Look], name: str) -> Any:
    return sum(look[name] for look in looks)


def row_of(size: int, authors: list[int], before: list[Look], after: list[Look], sent_bytes: int) -> Row:
    """Put together what the processes say of a phase; `authors` are the nodes that published, by message."""
    counts = [[Counter(counts) for look in looks for counts in look["counts"]] for looks in (before, after)]
    for old, new in zip(*counts, strict=True):
        new.subtract(old)
    sums = {name: sum(counter[name] for counter in counts[1]) for name in (*TROUBLES, "sent_bytes")}
    nodes, own, payload = len(counts[1]), Counter(authors), len(authors) * size
    heard: dict[int, int] = dict(pair for look in after for pair in look["heard"])
    shares = [heard.get(n, 0) / max(1, len(authors) - own[n]) for look in after for n in look["numbers"]]
    late_ms = sorted(late for look in after for late in look["late_ms"]) or [float("nan")]
    cpu_s, deliveries = total(after, "cpu_s") - total(before, "cpu_s"), sum(heard.values())
    row = {"nodes": nodes, "size": size, "delivered": deliveries / (len(authors) * (nodes - 1)), "worst": min(shares)}
    row |= {"p50": late_ms[len(late_ms) // 2], "p99": late_ms[len(late_ms) * 99 // 100]}
    row |= {"cpu": 1000 * cpu_s / max(1, deliveries), "link": sent_bytes / nodes / payload}
    row |= {"data": sums["sent_bytes"] / nodes / payload, "most": max(c["sent_bytes"] for c in counts[1]) / payload}
    row |= {name: total(after, name) / nodes for name in ("rss", "peak")}
    return {**row, "troubles": {name: sums[name] for name in TROUBLES if sums[name]}}


def loopback_bytes() -> int:
    """All that was ever sent in this network."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split()[9])


class Swarm:
    """Processes with nodes, which are numbered from 1 on. They end with its `async with`."""

    def __init__(self, flood: bool = False) -> None:
        from waggle.core.rng import rng_for

        self.children: list[Child] = []
        self.phases = itertools.count()
        self.num_kept = 0
        """Messages that nodes keep for latecomers."""
        self._flood = flood
        self._addresses: dict[int, str] = {}
        self._rng = rng_for("network benchmark")

    async def __aenter__(self) -> "Swarm":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill(self.children)

    async def start(self, child: Child, numbers: range) -> None:
        where = await child.ask("start", IMPORT_S, first=numbers[0], num=len(numbers), flood=self._flood)
        self._addresses.update(zip(numbers, where, strict=True))

    async def grow(self, num: int, through: Sequence[int] = ()) -> None:
        """More nodes; each joins through those named, or `KNOWN` of those before it."""
        first, each = len(self._addresses) + 1, 1 if num <= ALONE else TOGETHER
        starts = range(first, first + num, each)
        added = [await _begin(range(at, min(at + each, first + num))) for at in starts]
        self.children += added
        await asyncio.gather(*(self.start(child, child.numbers) for child in added))
        for child in added:
            await child.ask("join", through=[self._known(through or range(1, n), n) for n in child.numbers])

    def _known(self, numbers: Sequence[int], me: int) -> list[str]:
        picks = self._rng.permutation(len(numbers))[:KNOWN].tolist()
        return [self._addresses[numbers[i]] for i in picks if numbers[i] != me]

    async def all(self, do: str, **arguments: Any) -> list[Any]:
        return await asyncio.gather(*(child.ask(do, **arguments) for child in self.children))

    async def warm_up(self) -> None:
        """Wait for neighbours, then play a little that is not counted."""
        ends_s, least = time.monotonic() + MEET_S, min(6, len(self._addresses) - 1)
        peers = [0]
        while min(peers) < least and time.monotonic() < ends_s:
            await asyncio.sleep(0.5)
            peers = [counts["peers"] for look in await self.all("look", phase=-1) for counts in look["counts"]]
        for size in RATES:
            await self.play("", size, 1.0)

    async def play(self, title: str, size: int, seconds: float) -> Row:
        """Messages of one size by random nodes at a steady rate. The row is printed if it has a title."""
        living = [(child, number) for child in self.children for number in child.numbers]
        phase, rate = next(self.phases), RATES[size] * min(1.0, BASE / len(living))
        num = max(1, round(rate * seconds))
        before, sent_bytes = await self.all("look", phase=phase), loopback_bytes()
        first_ns = time.monotonic_ns() + int(1e9 * LEAD_S)
        authors, plans = [], defaultdict[Child, Plan](list)
        for number, who in enumerate(self._rng.integers(len(living), size=num).tolist()):
            authors.append(living[who][1])
            plans[living[who][0]].append((first_ns + int(1e9 * number / rate), authors[-1], number))
        await asyncio.gather(*(child.ask("play", phase=phase, size=size, plan=plan) for child, plan in plans.items()))
        await asyncio.sleep(LEAD_S + num / rate)
        await self._settle(phase, num * (len(living) - 1))
        sent_bytes = loopback_bytes() - sent_bytes
        row = row_of(size, authors, before, await self.all("look", phase=phase), sent_bytes)
        if title:
            cells = (f" {row[name]:{text}}" for name, text in CELLS)
            print(f"{title:14s}{''.join(cells)} {row['troubles'] or ''}", flush=True)
        self.num_kept += num * (size > EAGER)
        return row

    async def _settle(self, phase: int, expected: int) -> None:
        last, since_s, ends_s = -1, time.monotonic(), time.monotonic() + SETTLE_S
        while (now_s := time.monotonic()) < ends_s and now_s - since_s < QUIET_S and last < expected:
            if (num := sum(await self.all("tally", phase=phase))) != last:
                last, since_s = num, now_s
            await asyncio.sleep(0.25)

    async def idle(self, seconds: float) -> str:
        """What all do while nobody says anything."""
        before, sent_bytes = await self.all("look", phase=-1), loopback_bytes()
        await asyncio.sleep(seconds)
        after, sent_bytes = await self.all("look", phase=-1), loopback_bytes() - sent_bytes
        percent = 100 * (total(after, "cpu_s") - total(before, "cpu_s")) / seconds
        bytes_per_s = sent_bytes / seconds / len(self._addresses)
        return f"idle: all take {percent:.2f} % of a core, each sends {bytes_per_s:.0f} bytes/s"

    async def kill(self, victims: Sequence[Child]) -> None:
        """Without any goodbye."""
        self.children = [child for child in self.children if child not in victims]
        for child in (child for child in victims if child.process.returncode is None):
            child.process.kill()
        await asyncio.gather(*(child.process.wait() for child in victims))


async def against_flood(options: argparse.Namespace) -> Any:
    """Both ways in turns."""
    from common import spread

    played: dict[str, list[list[Row]]] = {"waggle": [], "flood": []}
    for turn in range(options.turns):
        for way in list(played)[:: 1 if turn % 2 == 0 else -1]:
            async with Swarm(way == "flood") as nodes:
                await nodes.grow(options.nodes)
                await nodes.warm_up()
                print(f"{way:14s} {await nodes.idle(options.seconds)}")
                played[way].append([await nodes.play(way, size, options.seconds) for size in RATES])
    for at, size in enumerate(RATES):
        pairs = [(ours[at], theirs[at]) for ours, theirs in zip(played["waggle"], played["flood"], strict=True)]
        ratios = (f"{name} {spread([a[name] / b[name] for a, b in pairs])}" for name in ("link", "p50", "p99", "cpu"))
        print(f"waggle / flood, {size:5d} bytes: {', '.join(ratios)}", flush=True)
    return played


async def uplink(options: argparse.Namespace) -> Any:
    """What a node's uplink carries in swarms of several sizes; the goal is a link of at most 1.2."""
    rows = []
    for num in options.uplink:
        async with Swarm() as nodes:
            await nodes.grow(num)
            await nodes.warm_up()
            rows += [await nodes.play("uplink", size, options.seconds) for size in (4096, 65536)]
    return rows


async def endpoints(options: argparse.Namespace) -> Any:
    """Nodes of one process that nobody talks to."""
    async with Swarm() as nodes:
        await nodes.grow(1)
        child, numbers = nodes.children[0], range(2, options.endpoints + 2)
        before, started = await child.ask("look", phase=-1), time.perf_counter()
        await nodes.start(child, numbers)
        open_s, after = time.perf_counter() - started, await child.ask("look", phase=-1)
        text = f"opened in {open_s:.2f} s, {(after['rss'] - before['rss']) / len(numbers):.2f} MB each, "
        text += f"{after['threads']} threads in all; {await nodes.idle(options.seconds)}"
    print(f"{len(numbers)} endpoints in one process: {text}", flush=True)
    return text


async def churn(options: argparse.Namespace) -> Any:
    """Kill the node through which all came and a quarter of the others; then somebody comes who never knew it."""
    rows = {}
    async with Swarm() as nodes:
        await nodes.grow(1)
        await nodes.grow(options.churn - 1, through=[1])
        await nodes.warm_up()
        rows["before"] = await nodes.play("before a kill", 4096, options.seconds)
        await nodes.kill([nodes.children[0], *nodes.children[1::4]])
        killed_s = time.monotonic()
        rows["after"] = await nodes.play("right after", 4096, options.seconds)
        await asyncio.sleep(max(0.0, killed_s + LATER_S - time.monotonic()))
        rows["later"] = await nodes.play(f"{LATER_S:g} s later", 4096, options.seconds)
        past, num_kept = next(nodes.phases), nodes.num_kept
        await nodes.grow(1, through=[nodes.children[-1].numbers[0]])
        rows["late"] = await nodes.play("one joined", 4096, options.seconds)
        tallies = [await nodes.children[-1].ask("tally", phase=phase) for phase in range(past)]
    print(f"who joined heard {sum(tallies)} of {num_kept} messages that were played before", flush=True)
    return {**rows, "history": [sum(tallies), num_kept]}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    parts = {"nodes": against_flood, "uplink": uplink, "endpoints": endpoints, "churn": churn}
    return {name: await part(options) for name, part in parts.items() if getattr(options, name)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=0, help="delivery, latency and cost against a plain flood")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--uplink", type=int, nargs="*", default=[], help="sizes of swarms")
    parser.add_argument("--endpoints", type=int, default=0, help="in one process")
    parser.add_argument("--churn", type=int, default=0, help="nodes of which some are killed")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(obey())
    if not loopback_only():
        print("this system gives a process no network of its own, and outside of one nothing is run here")
        return 1
    print(TITLES)
    results = asyncio.run(measure(options))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
