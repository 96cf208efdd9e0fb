import torch

from waggle.policy.cache import SlotCache


def states(rows: int, slots: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + rows * 2 * slots * 3, dtype=torch.float32).view(rows, 2, slots, 3)


def filled(rows: int = 3, slots: int = 4, capacity: int = 9) -> SlotCache:
    cache = SlotCache(capacity)
    for layer in range(2):
        cache.update(states(rows, slots), states(rows, slots) + 0.5, layer)
    cache.advance(slots)
    return cache


def test_new_slots_are_written_in_place_behind_the_old_ones() -> None:
    cache = filled()
    before = [tensor.data_ptr() for pair in cache.pairs for tensor in pair]
    new = states(3, 2, 1000)
    keys, values = cache.update(new, -new, 0)
    assert (keys.shape, values.shape) == ((3, 2, 6, 3), (3, 2, 6, 3))
    torch.testing.assert_close(keys, torch.cat([states(3, 4), new], 2))
    torch.testing.assert_close(values, torch.cat([states(3, 4) + 0.5, -new], 2))
    cache.update(new, -new, 1)
    cache.advance(2)
    assert cache.get_seq_length() == 6
    assert cache.get_mask_sizes(1) == (7, 0)
    assert [tensor.data_ptr() for pair in cache.pairs for tensor in pair] == before


def test_rows_can_leave() -> None:
    cache = filled()
    cache.keep(torch.tensor([0, 2]))
    for keys, values in cache.pairs:
        assert keys.shape == (2, 2, 9, 3)
        torch.testing.assert_close(keys[:, :, :4], states(3, 4)[[0, 2]])
        torch.testing.assert_close(values[:, :, :4], states(3, 4)[[0, 2]] + 0.5)


def test_rows_of_another_cache_can_be_received() -> None:
    source = filled()
    cache = source.like(5, 12)
    cache.receive(source, slice(1, 4), torch.tensor([2, 0, 2]), 3)
    keys = cache.pairs[1][0]
    torch.testing.assert_close(keys[1:4, :, 3:7], states(3, 4)[[2, 0, 2]])
    assert keys.shape == (5, 2, 12, 3)
