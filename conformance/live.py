"""A real node to try a client beside: `python conformance/live.py COMMAND...`, with TICKET where the ticket goes.

Example: python conformance/live.py python examples/peer.py TICKET --seconds 8 --bind 127.0.0.1:0

The node is whole but for its model, which is scripted: it answers sums, seals, offers, asks and serves over the real
network code. Node and command share a network that holds loopback alone, so nothing leaves the machine (Linux). The
node plays rounds until the command ends, the time is over, or, with `--until WORD`, experience has gone both ways and
the command has printed a line that begins with the word. Then one JSON object says what came of it:

`asked`: requests that the node answered, by protocol. `heard`: announcements that it took for news, by author.
`admitted`, `used`: groups that passed admission, and that a step was taken on, by author. `refused`: by reason.
`code` and `said`: how the command ended, and what it printed.

Exit status: 0 where something of the client was used and it asked for something, 1 where not, 3 where the system gives
no network of its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

from waggle.core.clock import SystemClock
from waggle.core.config import load
from waggle.core.events import NoEvents
from waggle.core.keys import Key
from waggle.core.types import Charter, Ticket
from waggle.net.book import Book
from waggle.net.iroh import IrohWire
from waggle.net.namespace import loopback_only
from waggle.net.overlay import OverlayTransport
from waggle.net.terms import Terms
from waggle.net.transport import Answer, address_text
from waggle.node.exchange import PULL
from waggle.node.node import Node
from waggle.node.round import Report, play
from waggle.node.scripted import ScriptedLearner
from waggle.swarm.charter import new_charter, ticket_text
from waggle.tasks.families import family
from waggle.tasks.grade import Graders
from waggle.tasks.taskset import Taskset

NO_NETWORK = 3
PAUSE_S = 0.2
SETTINGS = (
    *("round.local=2", "round.foreign=3", "round.group_size=4", "round.refills=2", "eval.every=0", "eval.report=1"),
    *("share.timeout_s=5.0",),
)
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


class Watched(OverlayTransport):
    """The real transport, which counts what it answers."""

    asked: Counter[str]

    def serve(self, proto: str, answer: Answer) -> None:
        self.asked = getattr(self, "asked", Counter())

        async def counted(caller: bytes, body: bytes) -> bytes:
            reply = await answer(caller, body)
            self.asked[proto] += 1
            return reply

        super().serve(proto, counted)


@dataclass
class Outcome:
    """What the node thought of the client."""

    asked: Counter[str]
    heard: Counter[str] = field(default_factory=Counter)
    admitted: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    code: int | None = None
    said: list[str] = field(default_factory=list)

    def take(self, report: Report) -> None:
        """Count what a round brought."""
        self.admitted.update(one.group.author.hex() for one in report.arrived.admitted)
        self.used.update(group.author.hex() for group in report.mixed.foreign)
        self.refused.update(report.arrived.refused)

    @property
    def is_good(self) -> bool:
        """Whether experience went both ways."""
        return bool(self.used and self.asked[PULL])

    def has_said(self, word: str) -> bool:
        """Whether a line of the command begins so."""
        return any(line.startswith(word) for line in self.said)


def made(charter: Charter, key: Key) -> tuple[Node, Watched]:
    """The node and its transport, on any free port of loopback."""
    taskset, clock = Taskset(charter), SystemClock()
    wire, terms = IrohWire(key, ("127.0.0.1:0", "[::1]:0")), Terms(taskset.digest)
    transport = Watched(key, wire, clock, Book(key.id), terms)
    learner, grader = ScriptedLearner(0.5, 0.0, tokenizer=b"t" * 32), Graders(charter.families, workers=0)
    return Node(key, taskset, load(None, SETTINGS), learner, grader, transport, clock, NoEvents()), transport


async def listen(client: asyncio.subprocess.Process, outcome: Outcome) -> None:
    """Keep what the command prints."""
    assert client.stdout is not None
    async for line in client.stdout:
        outcome.said.append(line.decode("utf-8", "replace").rstrip())
    outcome.code = await client.wait()


async def beside(command: list[str], seconds: float, until: str) -> Outcome:
    """Run the command beside a node."""
    key = Key.from_seed(b"conformance kit, a node to try on"[:32])
    sums = family("chain_sum", SUMS, max_tokens=8)
    node, transport = made(new_charter(key, "conformance", [sums], created_ms=1_700_000_000_000), key)
    outcome = Outcome(transport.asked)
    ticket = ticket_text(Ticket(node.taskset.charter, (address_text(await node.start()),)))
    words = [ticket if word == "TICKET" else word for word in command]
    client = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told = asyncio.create_task(listen(client, outcome))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not told.done() and not (until and outcome.is_good and outcome.has_said(until)):
                    outcome.take(await play(node))
                    await asyncio.sleep(PAUSE_S)
    finally:
        if client.returncode is None:
            client.terminate()
        await told
        outcome.heard.update(author.hex() for author in node.heard)
        await node.close()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to wait for the command at most")
    parser.add_argument("--until", default="", help="end earlier, see above")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # a process with threads cannot change its network
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if not loopback_only():
        sys.stderr.write("this system gives processes no network of their own; on another one this can be tried\n")
        return NO_NETWORK
    outcome = asyncio.run(beside(options.command, options.seconds, options.until))
    sys.stdout.write(json.dumps(vars(outcome), indent=1) + "\n")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
