"""Randomness by name: the same seed and purpose give the same numbers on every machine.

Two kinds. `rng_for` is a numpy generator for decisions (which task, which peer). `uniforms` is
counter-based: number `position` of row `key` is a pure function of both (splitmix64, Steele et al. 2014),
so that an answer does not depend on what else is in its batch. There is no global generator.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_for(*purpose: str | int | bytes) -> int:
    """A 53-bit seed from a purpose, e.g. `seed_for("draw", peer_id, 3)`.

    Each part is hashed with its type and length, so that no two purposes collide by concatenation.
    """
    state = hashlib.sha256()
    for part in purpose:
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(f"{type(part).__name__}:{len(data)}:".encode() + data)
    return int.from_bytes(state.digest()[:8], "little") >> 11


def rng_for(*purpose: str | int | bytes) -> np.random.Generator:
    """A numpy generator for one purpose, e.g. `rng_for(seed, "mix", round)`."""
    return np.random.Generator(np.random.PCG64(seed_for(*purpose)))


def uniforms(keys_B: NDArray[np.uint64], positions_B: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One uniform number in [0, 1) for every (row key, position) pair, shape [B]."""
    with np.errstate(over="ignore"):
        z = keys_B + (positions_B + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        unit_B: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit_B
