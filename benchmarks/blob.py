"""A blob over real connections from three providers: one lies, one is killed midway, and so is the fetch itself.

    python benchmarks/blob.py --megabytes 200
    python benchmarks/blob.py --megabytes 1 --calm --link "tbf rate 64kbit burst 16kb latency 3s"

Every node is a process of its own with an iroh endpoint, in a network namespace that holds loopback alone. First one
provider gives the blob undisturbed. Then three do, of which one flips a bit in all it gives: at a third the fetching
process is killed (SIGKILL) and started anew on the same folder, at two thirds one of the honest providers is. `--calm`
does the first part alone; `--link` is how tc shapes loopback, all directions together.

Fails where what came is not the blob, the liar was not dropped, or a chunk that was there was fetched again.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from waggle.core.blob import CHUNK_BYTES, DiskBlobs, blob_id
from waggle.core.clock import SystemClock
from waggle.core.keys import Key, peer_name
from waggle.net.blobs import fetch, serve_blobs
from waggle.net.book import Book
from waggle.net.iroh import IrohWire
from waggle.net.namespace import loopback_only
from waggle.net.overlay import OverlayTransport
from waggle.net.transport import address_text, read_address

TAKER, GOOD, DYING, LIAR = range(4)
TIMEOUT_S = 3600.0
LOOK_S = 0.02


class Liar(DiskBlobs):
    """Flips a bit in all it gives."""

    def read(self, blob: bytes, offset: int, size_bytes: int) -> bytes:
        """Wrong bytes, as many as were asked for."""
        data = bytearray(super().read(blob, offset, size_bytes))
        data[-1] ^= 1
        return bytes(data)


def key_of(number: int) -> Key:
    """The key of a node."""
    return Key.from_seed(bytes([number + 1]) * 32)


def node(number: int) -> OverlayTransport:
    """A node on loopback, not yet online."""
    key = key_of(number)
    return OverlayTransport(key, IrohWire(key, ("127.0.0.1:0", "[::1]:0")), SystemClock(), Book(key.id))


async def provide(number: int, folder: Path, blob: bytes) -> None:
    """Say where the blob can be had, and give it until the process is killed."""
    transport = node(number)
    serve_blobs(transport, (Liar if number == LIAR else DiskBlobs)(folder), {blob})
    print(address_text(await transport.start()), flush=True)
    await asyncio.Event().wait()


async def take(folder: Path, blob: bytes, addresses: Sequence[str]) -> None:
    """Fetch the blob and say as JSON what came of it."""
    transport, peers = node(TAKER), [read_address(text) for text in addresses]
    await transport.start()
    await transport.join(peers)
    print("begun", flush=True)
    started_s = time.perf_counter()
    order = [peer.id for peer in peers]
    fetched = await fetch(transport, order, blob, DiskBlobs(folder), SystemClock(), timeout_s=TIMEOUT_S)
    told = {
        "seconds": time.perf_counter() - started_s,
        "bytes_from": {peer.hex(): num_bytes for peer, num_bytes in fetched.bytes_from.items()},
        "lied": [peer.hex() for peer in fetched.lied],
        "failed": [peer.hex() for peer in fetched.failed],
        "num_resumed": fetched.num_resumed,
        "received_bytes": transport.counts["received_bytes"],
    }
    await transport.close()
    print(json.dumps(told), flush=True)


class Stage:
    """The processes of one part, which end with it."""

    def __init__(self, blob: bytes, source: Path, target: Path) -> None:
        self.blob, self.source, self.target = blob, source, target
        self.part, self.size_bytes = target / f"{blob.hex()}.part", (source / blob.hex()).stat().st_size
        self.running: dict[int, subprocess.Popen[str]] = {}
        self.addresses: dict[int, str] = {}

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.running):
            self.kill(number)

    def start(self, number: int, *arguments: str) -> str:
        """Start a node; returns the first thing it says."""
        command = [sys.executable, __file__, "--role", str(number), *arguments]
        self.running[number] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self.hear(number)

    def provide(self, *numbers: int) -> None:
        """Start providers."""
        for number in numbers:
            self.addresses[number] = self.start(number, str(self.source), self.blob.hex())

    def take(self) -> None:
        """Start the fetch."""
        self.start(TAKER, str(self.target), self.blob.hex(), *self.addresses.values())

    def hear(self, number: int) -> str:
        """The next line that a node says."""
        stdout = self.running[number].stdout
        line = stdout.readline().strip() if stdout else ""
        if not line:
            raise SystemExit(f"node {number} ended before it said anything")
        return line

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def wait_for(self, share: float) -> float:
        """Until so much of the blob is there; returns how many bytes are."""
        while True:
            there = self.part.stat().st_blocks * 512 if self.part.exists() else 0
            if there >= share * self.size_bytes:
                return there
            if self.running[TAKER].poll() is not None:
                raise SystemExit(f"the fetch ended before {share:.0%} was there")
            time.sleep(LOOK_S)

    def check(self) -> bool:
        """Whether what came is the blob, byte by byte."""
        return blob_id((self.target / self.blob.hex()).read_bytes()) == self.blob


def report(told: dict[str, object], names: dict[str, str]) -> str:
    """Who gave what, in MB."""
    given = told["bytes_from"]
    assert isinstance(given, dict)
    seconds, total = float(str(told["seconds"])), sum(given.values())
    parts = ", ".join(f"{names[peer]} {num_bytes / 1e6:.1f}" for peer, num_bytes in given.items())
    return f"{total / 1e6:.1f} MB in {seconds:.2f} s, {total / 1e6 / seconds:.1f} MB/s ({parts})"


def calm(stage: Stage, names: dict[str, str]) -> bool:
    """One provider, undisturbed."""
    stage.provide(GOOD)
    stage.take()
    print(f"one provider, undisturbed: {report(json.loads(stage.hear(TAKER)), names)}")
    return stage.check()


def trouble(stage: Stage, names: dict[str, str]) -> bool:
    """Three providers, and all that goes wrong."""
    stage.provide(LIAR, DYING, GOOD)
    stage.take()
    started_s = time.perf_counter()
    there = stage.wait_for(1 / 3)
    rate = there / 1e6 / (time.perf_counter() - started_s)
    stage.kill(TAKER)
    print(f"three providers: the fetch was killed at {there / stage.size_bytes:.0%}, after {rate:.1f} MB/s")
    stage.take()
    there = stage.wait_for(2 / 3)
    stage.kill(DYING)
    print(f"  started anew; {names[key_of(DYING).id.hex()]} was killed at {there / stage.size_bytes:.0%}")
    told = json.loads(stage.hear(TAKER))
    lied, failed = ([names[peer] for peer in told[why]] for why in ("lied", "failed"))
    resumed, num = told["num_resumed"], -(-stage.size_bytes // CHUNK_BYTES)
    again = told["received_bytes"] - sum(told["bytes_from"].values())
    print(f"  {report(told, names)}")
    print(f"  {resumed} of {num} chunks were there already and were verified; {again / 1e6:.1f} MB came for nothing")
    instead = "nobody: what the killed one had in hand was asked for elsewhere before"
    print(f"  dropped as liar: {', '.join(lied)}; dropped since it failed: {', '.join(failed) or instead}")
    given = sum(told["bytes_from"].values())
    return (
        stage.check()
        and lied == [names[key_of(LIAR).id.hex()]]
        and given + resumed * CHUNK_BYTES < (stage.size_bytes + CHUNK_BYTES)
    )


def run(options: argparse.Namespace, folder: Path) -> int:
    """Both parts; the exit status says whether all held."""
    if not loopback_only():
        print("this system gives processes no network of their own; nothing was measured")
        return 3
    if options.link:
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *options.link.split()], check=True)
    (folder / "data").write_bytes(os.urandom(int(options.megabytes * 1e6)))
    started_s = time.perf_counter()
    blob = DiskBlobs(folder / "source").put_file(folder / "data")
    rate = options.megabytes / (time.perf_counter() - started_s)
    print(f"a blob of {options.megabytes:g} MB, put in at {rate:.0f} MB/s")
    names = {key_of(number).id.hex(): peer_name(key_of(number).id) for number in (GOOD, DYING, LIAR)}
    held = True
    for act in (calm,) if options.calm else (calm, trouble):
        with Stage(blob, folder / "source", folder / act.__name__) as stage:
            right = act(stage, names)
        print(f"  {'verified: what came is the blob' if right else 'WRONG'}")
        held = held and right
    return 0 if held else 1


def main() -> int:
    """The whole, or with `--role` one node of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--link", default="")
    parser.add_argument("--role", type=int, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is None:
        with tempfile.TemporaryDirectory() as folder:
            return run(options, Path(folder))
    place, blob = Path(options.rest[0]), bytes.fromhex(options.rest[1])
    asyncio.run(take(place, blob, options.rest[2:]) if options.role == TAKER else provide(options.role, place, blob))
    return 0


if __name__ == "__main__":
    sys.exit(main())
