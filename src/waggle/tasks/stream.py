"""Which questions an author is given: a stream that follows from his key, so that nobody picks.

Draw `d` of epoch `e` either belongs to the author's own stream or, at positions that are the same for
everybody, to the stream common to the swarm, so that several peers answer the same question. Seed and family
of a draw are functions of (charter, author or nobody, e, d) alone: anyone can check a reference, a restart
does not replay, and who works on some families only skips the draws of others. Draws come in runs of one family,
since questions that share their examples are answered and trained on for much less.
What this cannot prevent is an author who starts at any epoch he likes: admission sees to it that they advance.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from waggle.core.codec import digest
from waggle.core.rng import seed_for, uniforms
from waggle.core.types import Charter, Count, Family, Noun, TaskRef
from waggle.tasks.gym import EPOCH

RUN = 8
"""Draws in a row that come from one stream and one family."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: its multiples fill the circle evenly, however many there are."""

__all__ = ["EPOCH", "RUN", "Cursor", "family_of", "is_common", "ref_at", "ref_is_drawn", "stream_seed"]


class Cursor(Noun, frozen=True):
    """The next draw of an author. Example: `Cursor(0, 17)`."""

    epoch: Count = 0
    index: Count = 0


@lru_cache(maxsize=4096)
def stream_seed(charter: bytes, author: bytes | None, epoch: int) -> int:
    """The 53-bit seed of an author's epoch; of the common stream where the author is None."""
    return seed_for("stream", charter, author or b"", epoch)


@lru_cache(maxsize=256)
def _common_D(charter: bytes, epoch: int) -> NDArray[np.float64]:
    return _uniforms_D(seed_for("common", charter, epoch))


def _uniforms_D(seed: int) -> NDArray[np.float64]:
    return uniforms(np.full(EPOCH, seed, np.uint64), np.arange(EPOCH, dtype=np.uint64))


def is_common(charter: bytes, epoch: int, index: int, share: float) -> bool:
    """Whether a draw, with its run, comes from the common stream: the same for every author."""
    return bool(_common_D(charter, epoch)[index // RUN] < share)


def family_of(seed: int, index: int, weights: tuple[int, ...]) -> int:
    """The position in the charter of the family of a stream's draw.

    Runs step around a circle by the golden ratio, so that every stretch of them has families by their weights.
    """
    place = ((_first_place(seed) << 11) + index // RUN * _GOLDEN) % 2**64
    draw = place * sum(weights) >> 64
    return next((i for i, below in enumerate(itertools.accumulate(weights)) if draw < below), len(weights) - 1)


@lru_cache(maxsize=4096)
def _first_place(seed: int) -> int:
    return seed_for("family", seed)


@lru_cache(maxsize=64)
def _config_digests(families: tuple[Family, ...]) -> tuple[bytes, ...]:
    return tuple(digest(family) for family in families)


@lru_cache(maxsize=64)
def _weights(families: tuple[Family, ...]) -> tuple[int, ...]:
    return tuple(family.weight for family in families)


def ref_at(charter: Charter, charter_digest: bytes, author: bytes, cursor: Cursor) -> TaskRef:
    """The reference that the author's stream dictates at this draw."""
    common = is_common(charter_digest, cursor.epoch, cursor.index, charter.common_share)
    seed = stream_seed(charter_digest, None if common else author, cursor.epoch)
    position = family_of(seed, cursor.index, _weights(charter.families))
    env, config = charter.families[position].env, _config_digests(charter.families)[position]
    return TaskRef(env, config, seed, cursor.epoch, cursor.index)


def ref_is_drawn(charter: Charter, charter_digest: bytes, author: bytes, ref: TaskRef) -> bool:
    """Whether this reference is exactly what the author's stream dictates at its epoch and index."""
    return ref.index < EPOCH and ref == ref_at(charter, charter_digest, author, Cursor(ref.epoch, ref.index))


def after(cursor: Cursor) -> Cursor:
    """The draw that follows."""
    return Cursor(cursor.epoch, cursor.index + 1) if cursor.index + 1 < EPOCH else Cursor(cursor.epoch + 1, 0)


def positions(charter: Charter, names: Sequence[str]) -> frozenset[int]:
    """Positions of the named families in the charter; of all where no name is given."""
    return frozenset(i for i, family in enumerate(charter.families) if not names or family.label in names)
