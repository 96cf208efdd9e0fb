"""Prompts computed once: completions that begin alike are packed into rows as token trees.

All paths (prompt, then completion) are sorted; in that order each path adds only what it does not share
with the one before it, which lays the prefix tree out depth first. A token attends to its ancestors and
to itself, and the tokens that descend from a token are the ones that follow it up to its `end`: so the
mask is `j <= i < end[j]` and the position of a token is its depth. Shared few-shot prefixes, shared
prompts and completions that begin alike are all the same case.

The last token of a completion is only ever predicted, so it takes no place in a row. Left out: balancing
rows by their quadratic attention cost, since the linear layers dominate at these lengths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Packing = Literal["tree", "plain"]


class Prompted(NamedTuple):
    """A prompt and the completions to score after it. Example: `Prompted([5, 7], [[9, 2], [9, 9, 2]])`."""

    prompt: Sequence[int] | Ints
    completions: Sequence[Sequence[int] | Ints]


@dataclass(frozen=True)
class Row:
    """One forward pass: a tree of T tokens and the N tokens to score on it.

    Trained tokens are ordered by the state that predicts them, so that a state is put through the
    output layer once however many tokens it predicts. `index_N` leads back to the order of the input:
    groups, their completions, their tokens.

    Example: prompt `5 7` with completions `9 2` and `9 9 2` is ids `5 7 9 9`, positions `0 1 2 3`, ends
    `4 4 4 4`; state 1 predicts 9 and 9, state 2 predicts 2 and 9, state 3 predicts 2.
    """

    ids_T: Ints
    positions_T: Ints
    end_T: Ints
    """One past the last token that descends from each token."""
    states_U: Ints
    """Tokens whose final hidden state predicts something, ascending."""
    state_N: Ints
    """For each trained token, which of `states_U` predicts it; ascending."""
    target_N: Ints
    index_N: Ints

    @property
    def is_chain(self) -> bool:
        """Whether the tree has no branch, so that plain causal attention is the mask."""
        return bool((self.end_T == len(self.ids_T)).all())

    def sees(self) -> NDArray[np.bool_]:
        """Which token (first axis) attends to which (second axis), shape [T, T]."""
        i_T = np.arange(len(self.ids_T))
        return (i_T <= i_T[:, None]) & (i_T[:, None] < self.end_T)


@dataclass(frozen=True)
class _Path:
    ids: Ints
    """The prompt and all of the completion but its last token."""
    prompt_tokens: int
    targets: Ints
    first: int
    """Place of the first target in the order of the input."""


def pack(groups: Sequence[Prompted], token_budget: int, packing: Packing = "tree") -> list[Row]:
    """Rows of at most `token_budget` tokens that hold every completion exactly once.

    Groups that begin alike come to lie side by side. A group is kept in one row where it fits in one, else
    it is split and its prompt repeated; a single path longer than the budget gets a row of its own.
    Completions without tokens are passed over. With `plain` every completion has its own row.

    Raises:
        ValueError: a prompt without tokens, which nothing could be predicted from.
    """
    paths = sorted(_paths(groups), key=lambda path: path.ids.astype(">i4").tobytes())
    if packing == "plain":
        return [_row([path]) for path in paths]
    rows: list[list[_Path]] = [[]]
    used = 0
    for _, same in groupby(paths, key=lambda path: path.ids[: path.prompt_tokens].tobytes()):
        unit = list(same)
        alone = _cost(None, unit)
        if used + _cost(_last(rows), unit) > token_budget >= alone:
            rows.append([])
            used = 0
        for path in unit:
            added = _cost(_last(rows), [path])
            if rows[-1] and used + added > token_budget:
                rows.append([])
                used, added = 0, len(path.ids)
            rows[-1].append(path)
            used += added
    return [_row(row) for row in rows if row]


def _paths(groups: Sequence[Prompted]) -> Iterator[_Path]:
    first = 0
    for group in groups:
        prompt = np.asarray(group.prompt, np.int32)
        if not len(prompt):
            raise ValueError("a prompt without tokens predicts nothing; give it at least one")
        for completion in group.completions:
            targets = np.asarray(completion, np.int32)
            if len(targets):
                yield _Path(np.concatenate((prompt, targets[:-1])), len(prompt), targets, first)
            first += len(targets)


def _last(rows: list[list[_Path]]) -> _Path | None:
    return rows[-1][-1] if rows[-1] else None


def _shared(a: Ints, b: Ints) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def _cost(previous: _Path | None, paths: Sequence[_Path]) -> int:
    """Tokens that these paths add to a row which ends with `previous`."""
    total = 0
    for path in paths:
        total += len(path.ids) - (_shared(previous.ids, path.ids) if previous else 0)
        previous = path
    return total


def _row(paths: Sequence[_Path]) -> Row:
    """Lay sorted paths out depth first."""
    size = _cost(None, paths)
    ids_T, positions_T, end_T = (np.empty(size, np.int32) for _ in range(3))
    places = np.empty(max(len(path.ids) for path in paths), np.int32)  # token of the current path at each depth
    sources, used, previous = [], 0, paths[0].ids[:0]
    for path in paths:
        fork, depth = _shared(previous, path.ids), len(path.ids)
        end_T[places[fork : len(previous)]] = used
        places[fork:depth] = np.arange(used, used + depth - fork)
        ids_T[used : used + depth - fork] = path.ids[fork:]
        positions_T[used : used + depth - fork] = np.arange(fork, depth)
        used += depth - fork
        sources.append(places[path.prompt_tokens - 1 : depth].copy())
        previous = path.ids
    end_T[places[: len(previous)]] = used
    source_N = np.concatenate(sources)
    order_N = np.argsort(source_N, kind="stable")
    states_U, state_N = np.unique(source_N[order_N], return_inverse=True)
    target_N = np.concatenate([path.targets for path in paths])[order_N]
    index_N = np.concatenate([np.arange(p.first, p.first + len(p.targets), dtype=np.int32) for p in paths])[order_N]
    return Row(ids_T, positions_T, end_T, states_U, state_N.astype(np.int32), target_N, index_N)
