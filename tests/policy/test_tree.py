import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waggle.policy.tree import Prompted, Row, pack


def tokens_seen(row: Row, state: int) -> list[int]:
    """Ids that a token attends to, in order."""
    seen = np.flatnonzero(row.sees()[state])
    assert list(row.positions_T[seen]) == list(range(len(seen)))
    return [int(i) for i in row.ids_T[seen]]


def trained(rows: list[Row]) -> dict[int, tuple[list[int], int]]:
    """For each trained token in the order of the input: what it is predicted from, and what it is."""
    found: dict[int, tuple[list[int], int]] = {}
    for row in rows:
        for state, target, index in zip(row.states_U[row.state_N], row.target_N, row.index_N, strict=True):
            assert int(index) not in found
            found[int(index)] = (tokens_seen(row, int(state)), int(target))
    return found


def expected(groups: list[Prompted]) -> dict[int, tuple[list[int], int]]:
    answer, index = {}, 0
    for prompt, completions in groups:
        for completion in completions:
            for i, target in enumerate(completion):
                answer[index] = ([*prompt, *completion[:i]], target)
                index += 1
    return answer


def test_the_example_of_the_docstring() -> None:
    (row,) = pack([Prompted([5, 7], [[9, 2], [9, 9, 2]])], 100)
    assert list(row.ids_T) == [5, 7, 9, 9]
    assert list(row.positions_T) == [0, 1, 2, 3]
    assert list(row.end_T) == [4, 4, 4, 4]
    assert list(row.states_U) == [1, 2, 3]
    assert list(row.state_N) == [0, 0, 1, 1, 2]
    assert list(row.target_N) == [9, 9, 2, 9, 2]
    assert list(row.index_N) == [0, 2, 1, 3, 4]
    assert row.is_chain


def test_a_branch_is_not_seen_from_its_sister() -> None:
    (row,) = pack([Prompted([5], [[8, 1], [9, 1]])], 100)
    assert list(row.ids_T) == [5, 8, 9]
    assert list(row.end_T) == [3, 2, 3]
    assert not row.is_chain
    assert row.sees().tolist() == [[True, False, False], [True, True, False], [True, False, True]]


ids = st.integers(0, 3)
completions = st.lists(st.lists(ids, max_size=5), max_size=4)
some_groups = st.lists(st.builds(Prompted, st.lists(ids, min_size=1, max_size=6), completions), max_size=5)


@given(some_groups, st.integers(1, 40), st.sampled_from(["tree", "plain"]))
@settings(max_examples=200)
def test_every_token_is_predicted_once_from_what_precedes_it(groups, budget, packing) -> None:  # type: ignore[no-untyped-def]
    rows = pack(groups, budget, packing)
    assert trained(rows) == expected(groups)
    for row in rows:
        assert len(row.ids_T) <= budget or row.is_chain
        assert (np.diff(row.states_U) > 0).all()
        assert (np.diff(row.state_N) >= 0).all()
        assert packing == "tree" or row.is_chain


def test_prompts_and_shared_prefixes_are_computed_once() -> None:
    prefix = list(range(100, 193))
    groups = [Prompted([*prefix, q, q], [[a, 1, 1, 1] for a in range(8)]) for q in range(6)]
    (row,) = pack(groups, 1024)
    assert len(row.ids_T) == 93 + 6 * (2 + 8 * 3)
    assert len(row.states_U) == 6 * (1 + 8 * 3)


def test_equal_prompts_of_two_peers_and_equal_answers_are_one_path() -> None:
    (row,) = pack([Prompted([1, 2, 3], [[4, 5], [4, 5]]), Prompted([1, 2, 3], [[4, 5]])], 100)
    assert list(row.ids_T) == [1, 2, 3, 4]
    assert list(row.index_N) == [0, 2, 4, 1, 3, 5]


def test_a_group_that_fits_is_kept_whole_and_groups_that_begin_alike_lie_together() -> None:
    groups = [Prompted([first, *range(50, 59)], [[i, 1] for i in range(5)]) for first in (7, 8, 7, 9)]
    rows = pack(groups, 25)
    assert [len(row.ids_T) for row in rows] == [15, 15, 15]
    assert sorted(rows[0].index_N) == [*range(10), *range(20, 30)]


@pytest.mark.parametrize(("budget", "sizes"), [(100, [26]), (20, [20, 16]), (14, [14, 14, 14, 14]), (5, [12] * 8)])
def test_a_group_too_large_is_split_and_its_prompt_repeated(budget: int, sizes: list[int]) -> None:
    rows = pack([Prompted(list(range(100, 110)), [[i, 1, 1] for i in range(8)])], budget)
    assert [len(row.ids_T) for row in rows] == sizes


def test_a_group_too_large_begins_in_the_row_before_it() -> None:
    large = Prompted(list(range(100, 110)), [[i, 1, 1] for i in range(3)])
    assert [len(row.ids_T) for row in pack([Prompted([1], [[5, 1]]), large], 15)] == [14, 14]
    assert [len(row.ids_T) for row in pack([Prompted([1], [[5, 1]]), large], 16)] == [2, 16]


def test_completions_without_tokens_are_passed_over() -> None:
    assert pack([], 10) == []
    assert pack([Prompted([1], [[], []]), Prompted([2], [])], 10) == []
    (row,) = pack([Prompted([1], [[], [7]])], 10)
    assert (list(row.ids_T), list(row.target_N), list(row.index_N)) == ([1], [7], [0])


def test_a_prompt_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        pack([Prompted([], [[1]])], 10)


def test_rows_do_not_depend_on_the_kind_of_sequence() -> None:
    lists = pack([Prompted([3, 4], [[5, 6]])], 10)[0]
    arrays = pack([Prompted(np.array([3, 4], "<i4"), [np.array([5, 6], "<i4")])], 10)[0]
    assert all((getattr(lists, name) == getattr(arrays, name)).all() for name in Row.__dataclass_fields__)
