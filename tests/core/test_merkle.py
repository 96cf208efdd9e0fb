"""The Merkle tree: RFC 6962 roots, and paths that prove one leaf at one place and nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waggle.core.merkle import path, root, root_from


def leaves(size: int) -> list[bytes]:
    return [hashlib.sha256(bytes([number])).digest() for number in range(size)]


def test_roots_by_hand() -> None:
    a, b, c = leaves(3)

    def leaf(data: bytes) -> bytes:
        return hashlib.sha256(b"\0" + data).digest()

    def node(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(b"\1" + left + right).digest()

    assert root([a]) == leaf(a)
    assert root([a, b]) == node(leaf(a), leaf(b))
    assert root([a, b, c]) == node(node(leaf(a), leaf(b)), leaf(c))


def test_the_rfc_6962_test_vector() -> None:
    inputs = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
    inputs.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))
    assert root(inputs).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 100])
def test_every_path_leads_to_the_root(size: int) -> None:
    all_leaves = leaves(size)
    for index in range(size):
        siblings = path(all_leaves, index)
        assert root_from(all_leaves[index], index, size, siblings) == root(all_leaves)
        assert len(siblings) <= (size - 1).bit_length()


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_a_path_proves_its_own_place_alone(size: int) -> None:
    all_leaves = leaves(size)
    wanted = root(all_leaves)
    for index in range(size):
        siblings = path(all_leaves, index)
        for other in range(-1, size + 2):
            if other != index:
                assert root_from(all_leaves[index], other, size, siblings) != wanted


@given(st.integers(1, 20), st.integers(-3, 25), st.integers(-3, 4096), st.lists(st.binary(min_size=32, max_size=32)))
def test_any_path_is_a_root_or_none(number: int, index: int, size: int, siblings: list[bytes]) -> None:
    all_leaves = leaves(number)
    assert root_from(all_leaves[0], index, size, tuple(siblings)) != root(all_leaves) or number == 1


def test_paths_that_do_not_fit() -> None:
    all_leaves = leaves(5)
    siblings = path(all_leaves, 2)
    for index, size, given_path in [
        (2, 5, siblings[:-1]),
        (2, 5, (*siblings, bytes(32))),
        (5, 5, siblings),
        (0, 1, siblings),
    ]:
        assert root_from(all_leaves[2], index, size, given_path) is None
