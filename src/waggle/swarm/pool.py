"""The foreign groups a node may train on: bounded by count, bytes and age, whatever peers send.

Age is counted in my own rounds since a group came. Where there is no room, the author who holds most places
loses his oldest group, so that nobody can push the others out by sending more. Every group that leaves is
counted by reason: `used` (as often as allowed), `expired`, `crowded-out`.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from waggle.core.codec import decode, encode
from waggle.core.types import Count, Group, Noun

_STATE_MAX_BYTES = 1 << 30


class Kept(Noun, frozen=True):
    """A group in the pool. `round` is mine, when it came; `uses` is how often I trained on it."""

    group: Group
    size_bytes: Count
    round: Count
    uses: Count = 0


class _State(Noun, frozen=True):
    kept: tuple[Kept, ...]
    counts: dict[str, int]


class Pool:
    """Example: `pool = Pool(512, 32 << 20, max_lag=64); pool.insert(group, 480, round=3); pool.groups()`."""

    def __init__(self, max_groups: int, max_bytes: int, max_lag: int) -> None:
        self._max_groups, self._max_bytes, self._max_lag = max_groups, max_bytes, max_lag
        self._kept: dict[bytes, Kept] = {}
        self._num_held: Counter[bytes] = Counter()
        self.size_bytes = 0
        self.counts: Counter[str] = Counter()
        """Groups that came (`inserted`) and that left, by reason."""
        self._left: list[tuple[bytes, str]] = []

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, group_id: bytes) -> bool:
        return group_id in self._kept

    def groups(self) -> list[Group]:
        """All groups, oldest first."""
        return [kept.group for kept in self._kept.values()]

    def entries(self) -> list[Kept]:
        """All groups with what is known of them, oldest first."""
        return list(self._kept.values())

    def insert(self, group: Group, size_bytes: int, round: int) -> bool:
        """Take in an admitted group. False where it is there already or did not find room itself."""
        if group.id in self._kept:
            return False
        self._kept[group.id] = Kept(group, size_bytes, round)
        self._num_held[group.author] += 1
        self.size_bytes += size_bytes
        self.counts["inserted"] += 1
        while len(self._kept) > self._max_groups or self.size_bytes > self._max_bytes:
            self._drop(self._crowded_out(), "crowded-out")
        return group.id in self._kept

    def use(self, group_ids: Iterable[bytes], again: Callable[[Kept], bool] = lambda kept: False) -> None:
        """Count one use of each; a group leaves unless it may be used `again`."""
        for group_id in group_ids:
            kept = self._kept[group_id]
            kept = self._kept[group_id] = Kept(kept.group, kept.size_bytes, kept.round, kept.uses + 1)
            if not again(kept):
                self._drop(group_id, "used")

    def expire(self, round: int) -> int:
        """Forget what came more than `max_lag` rounds before this one. Returns how many."""
        old = [group_id for group_id, kept in self._kept.items() if round - kept.round > self._max_lag]
        for group_id in old:
            self._drop(group_id, "expired")
        return len(old)

    def take_left(self) -> list[tuple[bytes, str]]:
        """Author and reason of each group that has left unused since the last call."""
        left, self._left = self._left, []
        return left

    def state(self) -> bytes:
        """The whole pool, for a checkpoint."""
        return encode(_State(tuple(self._kept.values()), dict(self.counts)))

    def restore(self, state: bytes) -> None:
        """Become what `state` held.

        Raises:
            DecodeError: not a state.
        """
        saved = decode(_State, state, _STATE_MAX_BYTES)
        self._kept = {kept.group.id: kept for kept in saved.kept}
        self._num_held = Counter(kept.group.author for kept in saved.kept)
        self.size_bytes = sum(kept.size_bytes for kept in saved.kept)
        self.counts = Counter(saved.counts)

    def _crowded_out(self) -> bytes:
        most = max(self._num_held.values())
        return next(i for i, kept in self._kept.items() if self._num_held[kept.group.author] == most)

    def _drop(self, group_id: bytes, reason: str) -> None:
        kept = self._kept.pop(group_id)
        author = kept.group.author
        self._num_held[author] -= 1
        if not self._num_held[author]:
            del self._num_held[author]
        self.size_bytes -= kept.size_bytes
        self.counts[reason] += 1
        if not kept.uses:
            self._left.append((author, reason))
