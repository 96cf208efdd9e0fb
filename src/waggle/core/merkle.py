"""A Merkle tree over digests: one signature covers a round, and each group carries its path.

RFC 6962 hashing (leaf 0x00, node 0x01), with the tree split at the largest power of two below its size.
"""

import hashlib
from collections.abc import Sequence

Path = tuple[bytes, ...]


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(size: int) -> int:
    return 1 << (size - 1).bit_length() - 1


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over at least one leaf, 32 bytes."""
    if len(leaves) == 1:
        return _leaf(leaves[0])
    split = _split(len(leaves))
    return _node(root(leaves[:split]), root(leaves[split:]))


def path(leaves: Sequence[bytes], index: int) -> Path:
    """The siblings from leaf `index` up to the root, lowest first."""
    if len(leaves) == 1:
        return ()
    split = _split(len(leaves))
    if index < split:
        return (*path(leaves[:split], index), root(leaves[split:]))
    return (*path(leaves[split:], index - split), root(leaves[:split]))


def root_from(leaf: bytes, index: int, size: int, siblings: Path) -> bytes | None:
    """The root that a path leads to, or None where the path does not fit the tree's shape."""
    steps: list[bool] = []  # from the top: does the leaf lie on the right?
    while size > 1:
        if not 0 <= index < size:
            return None
        split = _split(size)
        right = index >= split
        steps.append(right)
        index, size = (index - split, size - split) if right else (index, split)
    if index != 0 or len(steps) != len(siblings):
        return None
    current = _leaf(leaf)
    for right, sibling in zip(reversed(steps), siblings, strict=True):
        current = _node(sibling, current) if right else _node(current, sibling)
    return current
