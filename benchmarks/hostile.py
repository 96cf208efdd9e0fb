"""Generated and mutated experiences through frame, decoder and admission, with the table of what became of them.

    python benchmarks/hostile.py --count 100000

Fails where an exception escapes, a second opinion disagrees with an admission, an item is not accounted for, or
memory grows by more than 2 % after the first fifth.
"""

import argparse
import ctypes
import gc
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.swarm import world
from tests.swarm.hostile import Enemy, second_opinion
from waggle.core.errors import DecodeError
from waggle.core.rng import rng_for
from waggle.core.types import Verdict
from waggle.swarm.admission import Refusal, check_signature, finish, screen, screen_announcement
from waggle.swarm.batch import unpack_batch
from waggle.swarm.pool import Pool
from waggle.swarm.seen import Seen


def memory_bytes() -> int:
    """Resident memory of this process, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Gate:
    """A node's gate: what arrives, is refused by reason or graded and kept."""

    def __init__(self, seed: int) -> None:
        self.enemy = Enemy(seed)
        self.view = world.view(seen=Seen(capacity=500), max_groups_per_round=24)
        self.pool = Pool(128, 1 << 20, max_lag=1000)
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_items = self.num_frames = self.num_bad_frames = self.num_admitted = self.num_heard = 0
        self._rng = rng_for("hostile grades", seed)

    def receive_items(self, count: int) -> None:
        """Receive frames until `count` more items came."""
        goal = self.num_items + count
        while self.num_items < goal:
            self._receive(self.enemy.frame())
            self._hear(*self.enemy.announcement())

    def highest_memory(self, count: int, looks: int = 8) -> int:
        """Receive `count` more items; the highest of `looks` measurements meanwhile, in bytes."""
        last = self.num_items + count
        highest_bytes = 0
        for look in range(looks, 0, -1):
            self.receive_items((last - self.num_items) // look)
            highest_bytes = max(highest_bytes, memory_bytes())
        return highest_bytes

    def _receive(self, frame: bytes) -> None:
        self.num_frames += 1
        try:
            items = unpack_batch(frame, 8 << 20, 40)
        except DecodeError as error:
            self.num_bad_frames += 1
            self.refused[error.reason] += 1
            return
        for item in items:
            self.num_items += 1
            self._admit(item)

    def _hear(self, sender: bytes, data: bytes) -> None:
        self.num_items += 1
        news = screen_announcement(data, sender, self.view, self.enemy.now_ms)
        refusal = news if isinstance(news, Refusal) else check_signature(news, self.view)
        if refusal:
            self.refused[refusal.reason.value] += 1
        else:
            self.num_heard += 1

    def _admit(self, item: bytes) -> None:
        result = screen(item, self.view, self.enemy.now_ms)
        if not isinstance(result, Refusal):
            ungraded = self._rng.random() < 0.02
            rewards = [None if ungraded else float(number % 2) for number in range(len(result.texts))]
            result_group = finish(result, [Verdict(reward) for reward in rewards], self.view)
            if not isinstance(result_group, Refusal):
                self.num_admitted += 1
                self.pool.insert(result_group, len(item), 0)
                self.faults += second_opinion(item, self.enemy.now_ms)
                return
            result = result_group
        self.refused[result.reason.value] += 1


def main() -> int:
    """Run and print; the exit status says whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    gate = Gate(options.seed)
    started_s = time.perf_counter()
    first_bytes = gate.highest_memory(options.count // 5)
    growth = gate.highest_memory(options.count - gate.num_items) / first_bytes - 1
    missing = gate.num_items + gate.num_bad_frames - gate.num_admitted - gate.num_heard - gate.refused.total()
    print(f"{gate.num_items} items in {gate.num_frames} frames, {time.perf_counter() - started_s:.0f} s")
    for reason, count in gate.refused.most_common():
        print(f"  {count:7d}  refused: {reason}")
    print(
        f"  {gate.num_admitted:7d}  admitted; faults by second opinion: {len(gate.faults)} {sorted(set(gate.faults))}"
    )
    print(f"  {gate.num_heard:7d}  announcements heard")
    print(f"  {missing:7d}  not accounted for")
    print(f"memory {first_bytes / 1e6:.1f} MB at most in the first fifth, {growth:+.2%} afterwards")
    return 0 if not gate.faults and not missing and growth < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
