import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from waggle.policy import machine

GB = 10**9


def system(root: Path, available_kb: int = 8_000_000, groups: str = "0::/\n", **files: str) -> Path:
    """A root folder with what the kernel would say; `__` in a name stands for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable:  {available_kb} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/status").write_text("Name:\tbee\nVmRSS:\t  1000 kB\n")
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_limits_it_is_what_the_system_says(tmp_path: Path) -> None:
    assert machine.available_bytes(system(tmp_path)) == 8_000_000 * 1024
    assert machine.resident_bytes(tmp_path) == 1000 * 1024


def test_a_limit_of_version_2_holds_with_reclaimable_pages_counted_as_free(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        groups="0::/a/b\n",
        a__memory_dot_max=f"{3 * GB}\n",
        a__memory_dot_current=f"{2 * GB}\n",
        a__memory_dot_stat=f"anon 5\ninactive_file {GB // 2}\n",
        a__b__memory_dot_max="max\n",
    )
    assert machine.available_bytes(root) == 3 * GB - 2 * GB + GB // 2


def test_the_tightest_of_nested_limits_holds(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        groups="0::/a/b\n",
        a__memory_dot_max=f"{4 * GB}",
        a__memory_dot_current="0",
        a__b__memory_dot_max=f"{GB}",
        a__b__memory_dot_current="1000",
        memory_dot_max=f"{2 * GB}",
    )
    assert machine.available_bytes(root) == GB - 1000


def test_a_limit_of_version_1_holds(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        groups="5:cpu:/x\n4:memory:/docker/1\n",
        memory__docker__1__memory_dot_limit_in_bytes=f"{2 * GB}",
        memory__docker__1__memory_dot_usage_in_bytes=f"{GB}",
        memory__docker__1__memory_dot_stat="total_inactive_file 7\n",
        memory__memory_dot_limit_in_bytes="9223372036854771712",
    )
    assert machine.available_bytes(root) == GB + 7


def test_a_container_that_sees_its_own_limit_at_the_root(tmp_path: Path) -> None:
    root = system(tmp_path, groups="0::/../../elsewhere\n", memory_dot_max=f"{GB}", memory_dot_current=f"{3 * GB}")
    assert machine.available_bytes(root) == 0


def test_where_nothing_is_said_half_of_the_memory_is_assumed(tmp_path: Path) -> None:
    assert machine.available_bytes(tmp_path) > 10**8
    assert machine.resident_bytes(tmp_path) == 0


def test_libraries_that_cannot_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    machine.trim()


KEPT = """
import ctypes, sys
from waggle.policy import machine
if "keep" in sys.argv:
    assert machine.keep_heap()
blocks = [ctypes.create_string_buffer(1 << 16) for _ in range(4096)]
on_top = ctypes.create_string_buffer(1 << 16)  # without it the top of the heap would go by itself
held = machine.resident_bytes()
del blocks
assert held - machine.resident_bytes() < 50 << 20
machine.trim()
print(held - machine.resident_bytes())
machine.give_back()
print(held - machine.resident_bytes())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone keeps a heap and can trim it")
@pytest.mark.parametrize(("how", "given_back"), [("keep", False), ("trim", True)])
def test_a_kept_heap_is_given_back_on_demand_alone(how: str, given_back: bool) -> None:
    done = subprocess.run([sys.executable, "-c", KEPT, how], check=True, capture_output=True, text=True)
    trimmed, given = map(int, done.stdout.split())
    assert (trimmed > 200 << 20) == given_back
    assert given > 200 << 20
