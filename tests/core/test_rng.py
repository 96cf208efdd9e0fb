"""Randomness by name: fixed for all time, separate by purpose, independent of the batch."""

import numpy as np
import pytest

from waggle.core.rng import rng_for, seed_for, uniforms


def test_seeds_are_fixed_for_all_time() -> None:
    assert seed_for("draw", b"peer", 3) == 6336790713352583
    assert rng_for(1, "mix", 2).integers(1000, size=3).tolist() == [815, 637, 585]


def test_purposes_do_not_collide() -> None:
    purposes = [("a", "bc"), ("ab", "c"), ("abc",), (b"abc",), ("1",), (1,), (b"1",), ("a", ""), ("a",), ("", "a"), ()]
    assert len({seed_for(*purpose) for purpose in purposes}) == len(purposes)
    assert all(0 <= seed_for("x", number) < 2**53 for number in range(100))


def test_the_same_purpose_gives_the_same_numbers() -> None:
    assert rng_for(7, "x").random() == rng_for(7, "x").random() != rng_for(7, "y").random()


def _splitmix64(seed: int, position: int) -> float:
    mask = 2**64 - 1
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


@pytest.mark.parametrize("key", [0, 1, 2**53 - 1, 2**64 - 1])
def test_uniforms_are_splitmix64(key: int) -> None:
    positions_B = np.arange(50, dtype=np.uint64)
    got_B = uniforms(np.full(50, key, np.uint64), positions_B)
    assert got_B.tolist() == [_splitmix64(key, position) for position in range(50)]


def test_the_known_first_number_of_splitmix64() -> None:
    got_B = uniforms(np.array([1234567], np.uint64), np.array([0], np.uint64))
    assert got_B[0] == (6457827717110365317 >> 11) * 2.0**-53


def test_a_row_does_not_depend_on_its_batch() -> None:
    keys_B = np.array([seed_for("row", number) for number in range(64)], np.uint64)
    all_B = uniforms(keys_B, np.full(64, 9, np.uint64))
    for number in range(64):
        assert uniforms(keys_B[number : number + 1], np.full(1, 9, np.uint64))[0] == all_B[number]


def test_uniforms_look_uniform() -> None:
    values_B = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.uint64))
    assert values_B.min() >= 0
    assert values_B.max() < 1
    assert abs(values_B.mean() - 0.5) < 0.01
    assert np.abs(np.histogram(values_B, 10, (0, 1))[0] - 2000).max() < 250
