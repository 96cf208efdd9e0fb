"""Keys and values of a batch, in tensors that are allocated once and written in place.

`transformers` grows its cache by concatenation, which copies everything seen so far at every token. Here a layer
is [B, K, S, D] (rows, key heads, slots, head width) with room for the whole answer, attention gets a view of the
filled part, and leaving rows make the tensors smaller. Slots are common to all rows; which of them a row may
see is the caller's mask.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """A cache of `capacity` slots of which `filled` are in use. `advance` after every forward pass."""

    def __init__(self, capacity: int) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.filled = 0
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Write the new slots of a layer and return the filled part, new slots included; called by the module."""
        if layer_idx == len(self.pairs):
            self.pairs.append((self._room(key_states), self._room(value_states)))
        end = self.filled + key_states.shape[2]
        keys, values = self.pairs[layer_idx]
        keys[:, :, self.filled : end] = key_states
        values[:, :, self.filled : end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, num: int) -> None:
        """Count slots that every layer has now written."""
        self.filled += num

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these, a layer at a time."""
        for layer, (keys, values) in enumerate(self.pairs):
            self.pairs[layer] = (self._chosen(keys, rows), self._chosen(values, rows))

    def receive(self, other: "SlotCache", rows: slice, chosen: Tensor, start: int) -> None:
        """Copy rows `chosen` of another cache's filled part into `rows` here, from slot `start` on."""
        end = start + other.filled
        for mine, theirs in zip(self.pairs, other.pairs, strict=True):
            for to, source in zip(mine, theirs, strict=True):
                to[rows, :, start:end] = source[:, :, : other.filled].index_select(0, chosen)

    def like(self, num_rows: int, capacity: int) -> "SlotCache":
        """An empty cache of the same layers, for another number of rows and slots."""
        twin = SlotCache(capacity)
        for keys, values in self.pairs:
            twin.pairs.append((_empty(keys, num_rows, capacity), _empty(values, num_rows, capacity)))
        return twin

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots in use; asked for by the module."""
        return self.filled

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Slots that the next query sees, and the first of them; asked for by the module."""
        return self.filled + query_length, 0

    def _room(self, states: Tensor) -> Tensor:
        return _empty(states, states.shape[0], self.capacity)

    def _chosen(self, tensor: Tensor, rows: Tensor) -> Tensor:
        fewer = _empty(tensor, len(rows), self.capacity)
        fewer[:, :, : self.filled] = tensor[:, :, : self.filled].index_select(0, rows)
        return fewer


def _empty(like: Tensor, num_rows: int, capacity: int) -> Tensor:
    """Room for keys or values. Zeros, since a masked slot still enters attention times 0, and 0 x NaN is NaN."""
    _, heads, _, width = like.shape
    return torch.zeros((num_rows, heads, capacity, width), dtype=like.dtype, device=like.device)
