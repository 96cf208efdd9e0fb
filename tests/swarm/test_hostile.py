"""Hostile experience through frame, decoder and admission: nothing escapes, nothing wrong gets in, nothing grows."""

from collections import Counter

import pytest

from benchmarks.hostile import Gate
from tests.swarm.hostile import Enemy
from waggle.swarm.admission import Reason


@pytest.fixture(scope="module")
def gate() -> Gate:
    made = Gate(seed=1)
    made.receive_items(5000)
    return made


def test_every_item_is_admitted_or_refused_for_a_reason(gate: Gate) -> None:
    assert gate.num_items >= 5000
    assert gate.num_admitted + gate.num_heard + gate.refused.total() == gate.num_items + gate.num_bad_frames
    assert gate.num_admitted > 100


def test_what_was_admitted_passes_a_second_opinion(gate: Gate) -> None:
    assert gate.faults == []


def test_nearly_every_reason_was_met(gate: Gate) -> None:
    """A generator that no longer reaches a check would make the other tests empty."""
    unmet = {reason.value for reason in Reason} - set(gate.refused)
    assert unmet <= {"not-member", "quarantined"}  # the swarm is open, and nobody is tried before


@pytest.mark.slow
def test_memory_is_flat(gate: Gate) -> None:
    before = gate.highest_memory(4000)
    assert gate.highest_memory(4000) < 1.02 * before


def test_the_enemy_is_repeatable() -> None:
    one, same = Enemy(3), Enemy(3)
    assert Counter(one.frame() for _ in range(20)) == Counter(same.frame() for _ in range(20))
