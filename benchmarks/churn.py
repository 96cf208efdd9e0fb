"""Trouble on real processes: the first-known peer dead, the net cut, latecomers, a third killed, a full disk, kills.

    python benchmarks/churn.py [--nodes 8] [--kills 50] [--stories first late halves third disk kills]

Every node is a `waggle join` of the model `tiny` with small rounds, on a host of its own (`internet.py`, `hosts.py`),
all lines fast. All but the last two join through the first. A story has a time before, during and after its trouble;
told are the rounds that every node played in each, and what `waggle status` says of those concerned. Rounds are counted
in `metrics.jsonl`: of a node whose disk was full, those played during the trouble are there once the disk has room.

In the end all nodes end in order, every `metrics.jsonl` has to have each round once and in order, and every run folder
has to be one that plays another round. A run folder on a disk that can be filled takes a mount of this process's own,
which needs root; without it that story is left out. Left out, too: a disk that loses what it has said to have written.
"""

import argparse
import contextlib
import ctypes
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hosts import BACK_S, DEFAULTS, HEAL_S, START_S, Player, ended, no_one_left, questions, until, watch
from internet import Internet, Line

from waggle.core.events import read_lines

NEW_MOUNTS = 0x20000
SETTINGS = (
    *(one for one in DEFAULTS if not one.startswith("eval.")),
    *("eval.every=10", "eval.steer=4", "eval.report=4", "run.checkpoint_minutes=0.2"),
    *("round.local=2", "round.foreign=2", "round.group_size=4", "round.max_tokens=4"),
)
PAUSE_S, BETWEEN_S = 0.08, 6.0
"""Of the grader over an answer; mean time from one kill to the next."""
BEFORE_S, DURING_S, AFTER_S = 20.0, 45.0, 40.0
DEAD_S, DISK_BYTES, LATE = 15.0, 192 << 20, 2
Sentences = dict[str, str]


def gaps(player: Player) -> str:
    """What is wrong with what a node has written, or nothing: each round belongs there once and in order."""
    for name in ("metrics.jsonl", "events.jsonl"):
        data = (player.run / name).read_bytes() if (player.run / name).exists() else b""
        lines = data[: data.rfind(b"\n") + 1].splitlines()  # the last one may be under way
        if damaged := [number for number, line in enumerate(lines, 1) if not is_json(line)]:
            return f"{player.name} has {len(damaged)} damaged lines in {name}, the first is line {damaged[0]}"
    numbers = [line["round"] for line in read_lines(player.run / "metrics.jsonl")]
    wrong = [number for number, expected in enumerate(numbers, 1) if number != expected]
    return f"{player.name} has round {wrong[0]} where another one belongs" if wrong else ""


def is_json(line: bytes) -> bool:
    """Whether a line can be read."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


class Swarm:
    """The nodes, and what happens to them."""

    def __init__(self, net: Internet, folder: Path, num: int, late: int, disk: bool) -> None:
        self.net, self.found = net, dict[str, Any]()
        self.players = [
            Player(f"node-{number}", net.add(Line(0.005)), folder / f"node-{number}", SETTINGS)
            for number in range(1, num + 1)
        ]
        self.early, self.late = self.players[: num - late], self.players[num - late :]
        self.questions = questions(folder / "asked.jsonl", PAUSE_S)
        self.full = self.early[-1]
        """Whose disk will be full."""
        if disk:
            size = f"size={DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "waggle", str(self.full.run)], check=True)

    @property
    def playing(self) -> list[Player]:
        """Whose process is there."""
        return [player for player in self.players if player.process]

    def begin(self) -> None:
        """All but the late ones join through the first."""
        self.early[0].start(self.questions)
        ticket = self.early[0].run / "ticket"
        until(self.early, ticket.exists, START_S)
        for player in self.early[1:]:
            player.start(self.questions, ticket)
        wanted = len(self.early) - 1
        met_s = until(self.early, lambda: all(player.peers >= wanted for player in self.early), START_S)
        print(f"{len(self.early)} nodes have met after {met_s:.0f} s", flush=True)

    def play(self, title: str, seconds: float) -> dict[str, int]:
        """Rounds that every node plays within some time."""
        watch(self.players, 0.1)
        before = {player.name: player.number for player in self.players}
        watch(self.players, seconds)
        return {player.name: player.number - before[player.name] for player in self.players}

    def tell(self, story: str, phases: dict[str, dict[str, int]], says: Sentences, **figures: float) -> None:
        """Print a story, and keep it."""
        wrong = [fault for player in self.players if (fault := gaps(player))]
        print(f"\n{story}: {', '.join(f'{name} {value:.0f} s' for name, value in figures.items())}")
        print(" " * 10 + "".join(f"{name:>10s}" for name in phases))
        for player in self.players:
            print(f"{player.name:10s}" + "".join(f"{rounds[player.name]:10d}" for rounds in phases.values()))
        for name, sentence in says.items():
            print(f"  {name}: {sentence}")
        print(f"  order of rounds: {wrong or 'right everywhere'}", flush=True)
        self.found[story] = {"rounds": phases, "status": says, "wrong": wrong, **figures}

    def says(self, when: str, *players: Player) -> Sentences:
        """What `waggle status` says of them now."""
        return {f"{player.name} {when}": player.status() for player in players}

    def all_have(self, num: int) -> Callable[[], bool]:
        """Whether everybody has so many peers."""
        return lambda: all(player.peers >= num for player in self.playing)

    def first(self) -> None:
        """The node through which all came is killed for good, and one of the others has to find its way back alone."""
        one, two, three = self.early[:3]
        phases = {"before": self.play("before", BEFORE_S)}
        one.kill()
        two.kill()
        two.resume()
        phases["during"] = self.play("during", DURING_S)
        says = self.says("while the first is dead", one, two, three)
        back_s = until(self.players, lambda: two.peers > 0, BACK_S)
        one.resume()
        returned_s = until(self.players, lambda: one.peers > 0, BACK_S)
        phases["after"] = self.play("after", AFTER_S)
        says |= self.says("afterwards", one, two)
        self.tell("every first-known peer killed", phases, says, second_back=back_s, first_back=returned_s)

    def latecomers(self) -> None:
        """Two more come, by the ticket of one that came itself, while the founder is dead."""
        founder, middle = self.early[0], self.early[2]
        phases = {"before": self.play("before", BEFORE_S)}
        founder.kill()
        for player in self.late:
            player.start(self.questions, middle.run / "ticket")
        met_s = until(self.players, lambda: all(player.peers > 1 for player in self.late), START_S)
        phases["during"] = self.play("during", DURING_S)
        says = self.says("while the founder is dead", founder, *self.late)
        founder.resume()
        back_s = until(self.players, lambda: founder.peers > 1, BACK_S)
        phases["after"] = self.play("after", AFTER_S)
        self.tell("late joiners", phases, says, met=met_s, founder_back=back_s)

    def halves(self) -> None:
        """The net is cut in two, and healed."""
        wanted = min(player.peers for player in self.playing)
        phases = {"before": self.play("before", BEFORE_S)}
        parts = self.players[::2], self.players[1::2]
        self.net.cut(*([player.host for player in part] for part in parts))
        phases["during"] = self.play("during", 60.0)
        says = self.says("while the net is cut", *self.players[:2])
        self.net.heal()
        met_s = until(self.players, self.all_have(wanted), HEAL_S)
        phases["after"] = self.play("after", AFTER_S)
        says |= self.says("afterwards", *self.players[:2])
        self.tell("two halves", phases, says, met_again=met_s)

    def third(self) -> None:
        """Three in ten are killed at once, and started again a little later."""
        wanted = min(player.peers for player in self.playing)
        victims = self.playing[1::2][: math.ceil(0.3 * len(self.playing))]
        phases = {"before": self.play("before", BEFORE_S)}
        for player in victims:
            player.kill()
        phases["during"] = self.play("during", DEAD_S)
        says = self.says("while dead", *victims)
        says |= self.says("meanwhile", next(player for player in self.playing if player not in victims))
        for player in victims:
            player.resume()
        met_s = until(self.players, self.all_have(wanted), HEAL_S)
        phases["after"] = self.play("after", AFTER_S)
        says |= self.says("afterwards", *victims)
        self.tell("30 % killed at once", phases, says, met_again=met_s)

    def disk(self) -> None:
        """One node's disk is full for a while."""
        phases = {"before": self.play("before", BEFORE_S)}
        ballast = self.full.run / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        try:
            during = self.play("during", DURING_S)
            says = self.says("while its disk is full", self.full)
        finally:
            ballast.unlink()
        number = self.full.number
        watch(self.players, 10.0)
        during[self.full.name] += self.full.number - number
        says |= self.says("10 s later", self.full)
        phases["during"], phases["after"] = during, self.play("after", AFTER_S)
        self.tell("a full disk", phases, says)

    def kills(self, num: int) -> None:
        """A random node at a random moment, again and again; each is started again at once."""
        from waggle.core.rng import rng_for

        rng = rng_for("churn", "kills")
        phases = {"before": self.play("before", BEFORE_S)}
        first_s, before = time.monotonic(), {player.name: player.number for player in self.players}
        hit = 0
        for _ in range(num):
            watch(self.players, float(rng.uniform(0, 2 * BETWEEN_S)))
            player = self.players[int(rng.integers(len(self.players)))]
            hit += player.peers > 0
            player.kill()
            player.resume()
        spent_s = time.monotonic() - first_s
        phases["during"] = {player.name: player.number - before[player.name] for player in self.players}
        met_s = until(self.players, self.all_have(len(self.players) // 2), HEAL_S)
        phases["after"] = self.play("after", AFTER_S)
        print(f"\n{num} kills, {hit} of them of nodes that had peers at the time")
        self.tell("kills", phases, self.says("afterwards", *self.players), within=spent_s, met_again=met_s)

    def end(self) -> None:
        """All end in order, and each plays another round."""
        faults = ended(self.players)
        watch(self.players, 0.1)
        states = self.says("after its end", *self.players)
        before = {player.name: player.number for player in self.players}
        for player in self.players:
            if (player.run / "run.json").exists():
                player.resume(f"run.rounds={player.number + 1}")
        faults += [fault for player in self.playing if (fault := player.wait(START_S))]
        watch(self.players, 0.1)
        for player in self.players:
            if player.number != before[player.name] + 1:
                faults.append(f"{player.name} played {player.number - before[player.name]} rounds instead of one more")
        faults += [fault for player in self.players if (fault := gaps(player))]
        in_order = sum(state.startswith("ended") for state in states.values())
        print(f"\nend: {in_order} of {len(states)} have ended in order, after {sum(before.values())} rounds together")
        print(f"faults: {faults or 'none'}", flush=True)
        self.found["end"] = {"status": states, "rounds": before, "faults": faults}


def mounts_of_its_own() -> bool:
    """Let what this process mounts be its own, and end with it and its children; False where that is not allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"]).returncode == 0


def told(swarm: Swarm, stories: Sequence[str], options: argparse.Namespace) -> None:
    """The stories that were asked for."""
    swarm.begin()
    every: dict[str, Callable[[], None]] = {
        "first": swarm.first,
        "late": swarm.latecomers,
        "halves": swarm.halves,
        "third": swarm.third,
        "disk": swarm.disk,
        "kills": lambda: swarm.kills(options.kills),
    }
    for name in stories:
        every[name]()
    swarm.end()


STORIES = ("first", "late", "halves", "third", "disk", "kills")


def main() -> int:
    """Play, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stories", nargs="*", choices=STORIES, default=list(STORIES))
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that an end in haste is one in order, too
    own_mounts = mounts_of_its_own()
    stories = [name for name in options.stories if name != "disk" or own_mounts]
    if len(stories) < len(options.stories):
        print("a disk that can be filled takes a mount, which is not allowed here: left out")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made, Internet() as net:
        folder = (options.folder or Path(made)).resolve()
        swarm = Swarm(net, folder, options.nodes, LATE * ("late" in stories), "disk" in stories)
        try:
            with no_one_left(swarm.players):
                told(swarm, stories, options)
        finally:
            if "disk" in stories:
                subprocess.run(["umount", "-l", str(swarm.full.run)], check=False)
    if options.json:
        options.json.write_text(json.dumps(swarm.found, indent=1))
    return 1 if swarm.found["end"]["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
