"""What memory this machine still has, and giving back what the C library keeps.

Linux says what is available (`/proc/meminfo`), and control groups (version 2 or 1) say what a container may use;
the smaller holds. Elsewhere half of the physical memory is assumed to be free. glibc keeps freed blocks of up to
32 MB in a heap that fragments: after a training step with gigabytes of short-lived tensors it holds far more than is
in use, until it is told to `trim`. A process with memory to spare does better to `keep_heap`.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
_keeps_heap = False


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can still be allocated without pushing anything out, in bytes.

    Args:
        root: where `proc` and `sys` are.
    """
    return max(0, min([_system_bytes(root), *_group_bytes(root)]))


def resident_bytes(root: Path = Path("/")) -> int:
    """Memory that this process holds already, in bytes; 0 where the system does not say."""
    return _field(root / "proc/self/status", "VmRSS:") * 1024


def trim() -> None:
    """Give free heap pages back, in a process that does not keep its heap; takes milliseconds."""
    if not _keeps_heap:
        give_back()


def give_back() -> None:
    """Give free heap pages back to the system once, in any process; does nothing where that is not glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def keep_heap() -> bool:
    """Keep freed memory, large blocks too, for the rest of this process; whether that can be had (glibc).

    A training step frees and takes gigabytes again and again; each page that comes from the system anew is filled
    with zeros first, which costs a sixth of the step. `give_back` now and then keeps pieces from piling up.
    """
    global _keeps_heap  # it is the process's allocator that changes
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        large = libc.mallopt(_MMAP_THRESHOLD, 1 << 30) or libc.mallopt(
            _MMAP_THRESHOLD, 32 << 20
        )  # older: at most 32 MB
        _keeps_heap = bool(large and libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
    return _keeps_heap


def _system_bytes(root: Path) -> int:
    if available := _field(root / "proc/meminfo", "MemAvailable:") * 1024:
        return available
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _group_bytes(root: Path) -> Iterator[int]:
    """What each control group around this process leaves, reclaimable file pages counted as free."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = base / path.lstrip("/")
        for folder in [p for p in (inner, *inner.parents) if p == base or base in p.parents]:
            limit = _number(_text(folder / names[0]), _UNLIMITED)
            if limit < _UNLIMITED:
                used = _number(_text(folder / names[1]), 0)
                yield limit - used + _field(folder / "memory.stat", names[2])


def _text(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace")
    except OSError:
        return ""


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.strip().isdecimal() else otherwise


def _field(file: Path, name: str) -> int:
    """The number after a name at the start of a line, or 0."""
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return _number(words[1], 0)
    return 0
