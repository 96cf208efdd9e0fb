"""Four hosts with lines of their own, two of them behind address translation: they join, share and survive.

    python benchmarks/hosts.py [--ways lan dsl poor] [--seconds 150] [--json hosts.json]

Every host is a network namespace on an internet in this process (`internet.py`) and plays one `waggle join` with the
default settings of rounds, sharing and network. The first founds the swarm, its ticket invites the others; the last two
are behind translation and so reach the first two alone. Then the founder and one behind translation are killed in turn
and started again with `--resume`; then the net is cut in two halves of one host of either kind, and healed.

The model is `tiny` and learns nothing: an answer is right by a bit of its hash, so that every group keeps a signal
and rounds offer as much at the end as at the beginning. Grading waits a moment over each answer, so that rounds take as
long as those of a small model on a laptop; the processor is mostly idle, and figures tell of lines and not of it.

Everything is read from what nodes write for people, `events.jsonl` and `metrics.jsonl`, and from the count of bytes on
the lines, IP headers included. `join`: seconds from the first packet of a host until its node is online. `peers`:
fewest to most. `foreign`: groups of peers in a round's batch. `pulls`: requests to peers that failed, by what was
asked. `kB/min`: up and down. Left out: hosts behind translation that dial each other, which takes a relay.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from internet import Host, Internet, Line

from waggle.core.events import Tail

NUM, KBIT = 4, 125.0
PAUSE_S = 0.04
START_S, MEET_S, BACK_S, CUT_S, HEAL_S, END_S = 120.0, 240.0, 240.0, 60.0, 300.0, 120.0
"""Deadlines: to be online, to meet somebody, to be back, (for how long the net is cut,) to meet again, to end."""
LOOK_S, NEVER = 0.25, float("nan")
QUESTIONS, WORDS = 400, 200
DEFAULTS = (
    *("model.name=tiny", "model.threads=1", "eval.every=20", "eval.steer=8", "eval.report=8", "run.minutes=60"),
    *("tasks.set=none", "tasks.grader=hosts:graded", "tasks.share_file=true"),
)
"""What differs from the default settings, besides the file of questions."""


class Way(NamedTuple):
    """What lies between two hosts."""

    trip_s: float
    loss: float
    """One way."""
    bytes_s: float


WAYS = {"lan": Way(0.001, 0.0, 0.0), "dsl": Way(0.05, 0.01, 1000 * KBIT), "poor": Way(2.0, 0.1, 64 * KBIT)}


class Round(NamedTuple):
    """A round as a node wrote it down."""

    at_s: float
    number: int
    seconds: float
    peers: int
    foreign: int


def graded(answer: str, truth: str) -> float:
    """The grader: right or wrong by a bit of the answer's hash, after as many seconds as the truth says."""
    if answer == truth:
        return 1.0
    time.sleep(float(truth))
    return float(hashlib.sha256(answer.encode("utf-8", "replace")).digest()[0] & 1)


def line_of(way: Way, behind_nat: bool = False) -> Line:
    """Half of what lies between two hosts; a queue holds what goes over in two round trips, at least 16 packets."""
    queue_bytes = max(24_000, int(2 * way.trip_s * way.bytes_s))
    return Line(way.trip_s / 4, way.loss, way.bytes_s, way.bytes_s, queue_bytes, behind_nat)


@dataclass(eq=False)
class Player:
    """A node on a host: its folder, its process, and what it has written so far."""

    name: str
    host: Host
    folder: Path
    """Home of its user; the run is in `run`."""
    settings: Sequence[str] = DEFAULTS
    process: "subprocess.Popen[bytes] | None" = None
    started_s: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Ends that nobody asked for."""

    def __post_init__(self) -> None:
        self.run = self.folder / "run"
        self.run.mkdir(parents=True, exist_ok=True)
        self._tails = Tail(self.run / "metrics.jsonl"), Tail(self.run / "events.jsonl")
        self._lines: dict[int, dict[str, Any]] = {}

    def start(self, questions: Path, ticket: Path | None = None) -> None:
        """Found a swarm, or join one by a ticket."""
        sets = (f"--set={setting}" for setting in (*self.settings, f"tasks.file={questions}"))
        self._start([*([str(ticket)] if ticket else []), "--run", str(self.run), *sets])

    def resume(self, *sets: str) -> None:
        """Go on, be it after a kill."""
        self._start(["--resume", str(self.run), *(f"--set={setting}" for setting in sets)])

    def _start(self, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "waggle", "join", *arguments, "--quiet", "--tied"]
        path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
        apart = {"HOME": str(self.folder), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
        self.host.first_s, self.started_s = 0.0, time.time()
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.host.inside(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **apart},
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a power cut does; graders end by themselves."""
        if self.process:
            assert self.process.stdin is not None
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process = None

    def wait(self, timeout_s: float) -> str:
        """What is wrong with its end, or nothing."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} did not end within {timeout_s:g} s"
        self.process = None
        return f"{self.name} ended with code {code}: {self.words()}" if code else ""

    def words(self) -> str:
        """What it said last."""
        lines = (self.folder / "log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][-WORDS:] if lines else ""

    def look(self) -> None:
        """Take in what it has written, and whether it is still there."""
        if self.process and (code := self.process.poll()) is not None:
            self.process = None
            self.faults.append(f"{self.name} ended by itself with code {code}: {self.words()}")
        events = list(self._tails[1].new())  # first: a round's line is in the other file by then
        self._lines.update((line["round"], line) for line in self._tails[0].new())
        self.events += events
        for event in events:
            line = self._lines.get(event.get("round", 0))
            if event["event"] == "round" and line:
                told = Round(event["at_s"], line["round"], event["seconds"], line["peers"], line["foreign_groups"])
                self.rounds.append(told)

    @property
    def peers(self) -> int:
        """Neighbours in the last round since the last start."""
        return self.rounds[-1].peers if self.rounds and self.rounds[-1].at_s > self.started_s else 0

    @property
    def number(self) -> int:
        """The last round that it has written down."""
        return max(self._lines, default=0)

    def first(self, is_it: Callable[[Round], bool], since_s: float) -> float:
        """When a round of this kind first ended."""
        return next((one.at_s for one in self.rounds if one.at_s > since_s and is_it(one)), NEVER)

    def firsts(self, since_s: float) -> tuple[float, float]:
        """When a round with a peer first ended, and one with a peer's work."""
        return self.first(lambda one: one.peers > 0, since_s), self.first(lambda one: one.foreign > 0, since_s)

    def online_s(self, since_s: float) -> float:
        """When it was online."""
        return next((e["at_s"] for e in self.events if e["event"] == "online" and e["at_s"] > since_s), NEVER)

    def status(self) -> str:
        """What `waggle status` says of it."""
        from waggle.node.status import read_status

        (node,) = read_status(self.run)
        return "; ".join((f"{node.state}, round {node.round}: {node.says}", *node.problems))


@contextlib.contextmanager
def no_one_left(players: Sequence[Player]) -> Iterator[None]:
    """Whatever happens, no node outlives the block."""
    try:
        yield
    finally:
        for player in players:
            player.kill()


def until(players: Sequence[Player], is_so: Callable[[], bool], timeout_s: float) -> float:
    """Look until something is so. Seconds that it took, or `NEVER`."""
    first_s = time.monotonic()
    while (spent_s := time.monotonic() - first_s) < timeout_s:
        for player in players:
            player.look()
        if is_so():
            return spent_s
        time.sleep(LOOK_S)
    return NEVER


def watch(players: Sequence[Player], seconds: float) -> None:
    """Look for a while."""
    until(players, lambda: False, seconds)


def questions(file: Path, pause_s: float) -> Path:
    """The file of questions; their truth is how long grading takes."""
    asked = ({"question": f"letter {number}?", "answer": str(pause_s)} for number in range(QUESTIONS))
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    return file


def ended(players: Sequence[Player]) -> list[str]:
    """End all in order. What was wrong with that or before."""
    playing = [player for player in players if player.process]
    for player in playing:
        assert player.process is not None
        assert player.process.stdin is not None
        player.process.stdin.close()
    found = [fault for player in playing if (fault := player.wait(END_S))]
    return found + [fault for player in players for fault in player.faults]


class Story:
    """One way's four hosts, from their first packet to their end."""

    def __init__(self, name: str, net: Internet, folder: Path, options: argparse.Namespace) -> None:
        self.name, self.net, self.options = name, net, options
        lines = [line_of(WAYS[name], behind_nat) for behind_nat in (False, False, True, True)]
        names = [f"host {number}{' (nat)' if line.behind_nat else ''}" for number, line in enumerate(lines, 1)]
        settings = (*DEFAULTS, *options.set)
        self.players = [
            Player(name, net.add(line), folder / "-".join(name.split()[:2]), settings)
            for name, line in zip(names, lines, strict=True)
        ]
        self.questions = questions(folder / "asked.jsonl", options.pause)
        self.found: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """A line of the report."""
        print(f"{self.name:5s} {text}", flush=True)

    def all_met(self) -> bool:
        """Whether everybody has all the peers that it can have."""
        return [player.peers for player in self.players] == [3, 3, 2, 2]

    def play(self) -> dict[str, Any]:
        """All chapters."""
        with no_one_left(self.players):
            self.join()
            self.found["steady"] = self.window("steady", self.options.seconds)
            self.found["kills"] = [self.kill(self.players[0]), self.kill(self.players[2])]
            self.found["cut"] = self.cut()
            self.found["end"] = self.window("end", self.options.seconds / 2)
            self.found["faults"] = ended(self.players)
        sharing = [row["foreign"] > 0 for row in self.found["end"]]
        self.say(f"still sharing at the end: {sum(sharing)} of {NUM}; faults: {self.found['faults'] or 'none'}")
        return self.found

    def join(self) -> None:
        """The first founds, the others join."""
        founder, *others = self.players
        founder.start(self.questions)
        ticket = founder.run / "ticket"
        until([founder], ticket.exists, START_S)
        for player in others:
            player.start(self.questions, ticket)
        met_s = until(self.players, self.all_met, START_S + MEET_S)
        rows = []
        for player in others:
            times = [at_s - player.host.first_s for at_s in (player.online_s(0), *player.firsts(0))]
            rows.append({"host": player.name, "after_s": times})
            text = "join {:6.1f} s, a round with a peer {:6.1f} s, with its work {:6.1f} s".format(*times)
            self.say(f"{player.name:13s} {text}")
        self.say(f"all have met after {met_s:.0f} s")
        self.found |= {"join": rows, "met_s": met_s}

    def window(self, title: str, seconds: float) -> list[dict[str, Any]]:
        """What happens within some time."""
        before = [(p.host.up.total_bytes, p.host.down.total_bytes, Counter(p.host.counts)) for p in self.players]
        since_s = time.time()
        watch(self.players, seconds)
        rows = []
        for player, (up, down, counts) in zip(self.players, before, strict=True):
            row = figures(player, since_s, time.time())
            row["up_kb_min"] = (player.host.up.total_bytes - up) * 0.06 / seconds
            row["down_kb_min"] = (player.host.down.total_bytes - down) * 0.06 / seconds
            row["packets"] = dict(Counter(player.host.counts) - counts)
            rows.append(row)
            self.say(f"{title:7s} {told(row)}")
        return rows

    def kill(self, player: Player) -> dict[str, Any]:
        """Kill a node and start it again: it comes back without being told how."""
        player.look()
        number = player.number
        player.kill()
        player.resume()
        since_s = player.started_s
        until(self.players, lambda: player.first(lambda one: one.foreign > 0, since_s) > 0, BACK_S)
        until(self.players, self.all_met, BACK_S)
        full_s = time.time() - since_s if self.all_met() else NEVER
        online_s, *others = (at_s - since_s for at_s in (player.online_s(since_s), *player.firsts(since_s)))
        self.say(
            f"killed {player.name} in round {number + 1}: online {online_s:.0f} s after its restart, a peer after "
            f"{others[0]:.0f} s, a peer's work after {others[1]:.0f} s, all have met after {full_s:.0f} s"
        )
        return {"host": player.name, "after_s": [online_s, *others, full_s]}

    def cut(self) -> dict[str, Any]:
        """Two halves, then one net again."""
        halves = self.players[::2], self.players[1::2]
        self.net.cut(*([player.host for player in half] for half in halves))
        rows = self.window("cut", CUT_S)
        sentences = {player.name: player.status() for player in self.players}
        self.net.heal()
        met_s = until(self.players, self.all_met, HEAL_S)
        self.say(f"healed: all have met again after {met_s:.0f} s; during the cut {sentences[self.players[2].name]!r}")
        return {"during": rows, "status": sentences, "met_s": met_s}


def figures(player: Player, since_s: float, until_s: float) -> dict[str, Any]:
    """What a node did within some time."""
    rounds = [one for one in player.rounds if since_s < one.at_s <= until_s]
    failed = Counter(
        next((word for word in str(event["why"]).split() if word.startswith("waggle/")), "other")
        for event in player.events
        if event["event"] == "unreachable" and since_s < event["at_s"] <= until_s
    )
    return {
        "host": player.name,
        "rounds": len(rounds),
        "round_s": statistics.median(one.seconds for one in rounds) if rounds else None,
        "foreign": sum(one.foreign for one in rounds) / len(rounds) if rounds else 0.0,
        "peers": [min((one.peers for one in rounds), default=0), max((one.peers for one in rounds), default=0)],
        "pulls_failed": dict(failed),
    }


def told(row: dict[str, Any]) -> str:
    """A row for people."""
    round_s = f"{row['round_s']:5.1f}" if row["round_s"] else "    -"
    fewest, most = row["peers"]
    text = f"{row['host']:13s} {row['rounds']:4d} rounds of {round_s} s, foreign {row['foreign']:4.1f}, "
    text += f"peers {fewest} to {most}, {row['up_kb_min']:6.1f} up {row['down_kb_min']:6.1f} down kB/min"
    return f"{text}, failed {row['pulls_failed'] or 'none'}, packets {row['packets'] or 'all there'}"


def main() -> int:
    """Play every way that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=150.0, help="of the steady part; the last takes half of it")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="of the grader, in seconds an answer")
    parser.add_argument("--set", action="append", default=[], help="another setting, to compare with")
    parser.add_argument("--seed", type=int, default=1, help="of the packets that get lost")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that an end in haste is one in order, too
    results = {}
    with tempfile.TemporaryDirectory() as made:
        for name in options.ways:
            folder = (options.folder or Path(made)).resolve() / name
            folder.mkdir(parents=True)
            with Internet(options.seed) as net:
                results[name] = Story(name, net, folder, options).play()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
