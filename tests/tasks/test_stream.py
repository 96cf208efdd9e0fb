"""The stream: what an author is dealt follows from his key, and nobody can pick."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waggle.core.codec import digest
from waggle.core.sealing import charter_digest
from waggle.core.types import Charter, TaskRef
from waggle.tasks.stream import EPOCH, RUN, Cursor, after, family_of, is_common, ref_at, ref_is_drawn, stream_seed

ALICE, BOB = b"a" * 32, b"b" * 32
SWARM = b"s" * 32


def test_seeds_differ_by_charter_author_epoch_and_stream() -> None:
    seeds = [
        stream_seed(swarm, author, epoch)
        for swarm in (SWARM, b"t" * 32)
        for author in (ALICE, BOB, None)
        for epoch in (0, 1)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_golden_seed() -> None:
    assert stream_seed(SWARM, ALICE, 0) == 430658638673747


def test_common_positions_are_the_stated_share() -> None:
    common = sum(is_common(SWARM, 0, index, 0.25) for index in range(EPOCH))
    assert 0.22 < common / EPOCH < 0.28
    assert not any(is_common(SWARM, 0, index, 0.0) for index in range(EPOCH))
    assert all(is_common(SWARM, 0, index, 1.0) for index in range(EPOCH))


def test_common_draws_are_the_same_question_for_everybody(charter: Charter) -> None:
    swarm = charter_digest(charter)
    for index in range(200):
        alice, bob = (ref_at(charter, swarm, author, Cursor(0, index)) for author in (ALICE, BOB))
        assert (alice == bob) == is_common(swarm, 0, index, charter.common_share)


def test_families_are_drawn_by_their_weights() -> None:
    for seed in range(16):
        drawn = [family_of(seed, RUN * run, (3, 3, 1, 3)) for run in range(100)]
        assert [round(drawn.count(i) / 10) for i in range(4)] == [3, 3, 1, 3]
        assert all(set(drawn[i : i + 20]) == {0, 1, 2, 3} for i in range(80))  # nobody waits for long


def test_draws_come_in_runs_of_one_stream_and_one_family(charter: Charter) -> None:
    swarm = charter_digest(charter)
    for first in range(0, EPOCH, RUN):
        run = [ref_at(charter, swarm, ALICE, Cursor(0, index)) for index in range(first, first + RUN)]
        assert len({(ref.config, ref.seed) for ref in run}) == 1


def test_after_the_last_draw_comes_the_next_epoch() -> None:
    assert after(Cursor(3, 5)) == Cursor(3, 6)
    assert after(Cursor(3, EPOCH - 1)) == Cursor(4, 0)


@settings(deadline=None, max_examples=150)
@given(
    index=st.integers(0, EPOCH - 1),
    epoch=st.integers(0, 3),
    field=st.sampled_from(["seed", "epoch", "config", "env"]),
    number=st.integers(0, 2**53),
    data=st.binary(min_size=32, max_size=32),
)
def test_nobody_can_pick_a_question(
    charter: Charter, index: int, epoch: int, field: str, number: int, data: bytes
) -> None:
    swarm = charter_digest(charter)
    ref = ref_at(charter, swarm, ALICE, Cursor(epoch, index))
    assert ref_is_drawn(charter, swarm, ALICE, ref)
    others = [f.env for f in charter.families if f.env != ref.env]
    changed = {"config": data, "env": others[number % len(others)]}.get(field, number)
    altered = msgspec.structs.replace(ref, **{field: changed})
    if altered != ref:
        assert not ref_is_drawn(charter, swarm, ALICE, altered)
    if not is_common(swarm, epoch, index, charter.common_share):
        assert not ref_is_drawn(charter, swarm, BOB, ref)


def test_each_draw_has_one_seed_and_one_family(charter: Charter) -> None:
    swarm = charter_digest(charter)
    seeds = [stream_seed(swarm, author, 0) for author in (ALICE, BOB, None)]
    for index in range(100):
        candidates = [
            TaskRef(family.env, digest(family), seed, 0, index) for family in charter.families for seed in seeds
        ]
        assert sum(ref_is_drawn(charter, swarm, ALICE, ref) for ref in candidates) == 1


@pytest.mark.parametrize("index", [EPOCH, EPOCH + 1, 2**53])
def test_an_index_outside_the_epoch_is_not_drawn(charter: Charter, index: int) -> None:
    swarm = charter_digest(charter)
    ref = msgspec.structs.replace(ref_at(charter, swarm, ALICE, Cursor(0, 0)), index=index)
    assert not ref_is_drawn(charter, swarm, ALICE, ref)
