"""Files that are whole or not there, at whatever instant the writer dies."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from waggle.core.errors import NetworkError, RunError
from waggle.core.files import append_line, disk_errors, folder_atomic, recover_folder, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "state"
    for data in (b"old", b"new"):
        write_atomic(target, data, mode=0o600)
        assert target.read_bytes() == data
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        assert names(tmp_path) == ["state"]


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "state"
    write_atomic(target, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*state: No space left on device; free some space"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["state"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("one", "two"):
        with folder_atomic(target) as folder:
            (folder / "weights").write_text(text)
            assert not (target / "weights").exists() or (target / "weights").read_text() != text
        assert (target / "weights").read_text() == text

    def interrupted() -> None:
        with folder_atomic(target) as folder:
            (folder / "weights").write_text("three")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (target / "weights").read_text() == "two"
    assert names(tmp_path) == ["model"]


def test_leftovers_of_a_crash_do_not_leak_into_the_next_folder(tmp_path: Path) -> None:
    (tmp_path / ".model.tmp").mkdir()
    (tmp_path / ".model.tmp" / "half").write_text("x")
    with folder_atomic(tmp_path / "model") as folder:
        (folder / "weights").write_text("x")
    assert names(tmp_path / "model") == ["weights"]


@pytest.mark.parametrize(
    ("left", "found"),
    [
        ((".model.old", ".model.tmp"), ".model.old"),
        ((".model.old",), ".model.old"),
        ((".model.old", "model"), "model"),
        ((".model.tmp", "model"), "model"),
        ((".model.tmp",), None),
        (("model",), "model"),
        ((), None),
    ],
)
def test_recovery_brings_a_whole_folder_back(tmp_path: Path, left: tuple[str, ...], found: str | None) -> None:
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    recover_folder(tmp_path / "model")
    assert names(tmp_path) == (["model"] if found else [])
    if found:
        assert (tmp_path / "model" / "from").read_text() == found


_WRITER = """
import sys, itertools, os
from pathlib import Path
from waggle.core.files import folder_atomic
for number in itertools.count():
    with folder_atomic(Path(sys.argv[1])) as folder:
        for name in "abc":
            (folder / name).write_text(str(number))
    os.write(1, b".")
"""


@pytest.mark.slow
@pytest.mark.parametrize("dots", [1, 2, 3, 5])
def test_a_killed_writer_leaves_one_whole_folder(tmp_path: Path, dots: int) -> None:
    target = tmp_path / "model"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(target)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.read(dots) == b"." * dots
        writer.kill()
    recover_folder(target)
    assert names(tmp_path) == ["model"]
    contents = {(target / name).read_text() for name in "abc"}
    assert len(contents) == 1
    assert int(contents.pop()) >= dots - 1


def test_disk_errors_are_said_and_others_pass(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"cannot write {tmp_path}: Is a directory"), disk_errors(tmp_path):
        open(tmp_path, "w").close()
    with pytest.raises(NetworkError, match="far away"), disk_errors(tmp_path):
        raise NetworkError("far away")
    with pytest.raises(ValueError, match="other"), disk_errors(tmp_path):
        raise ValueError("other")


def test_lines_that_find_no_room_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "events.jsonl"
    append_line(file, b"one\n", 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))  # room for half a line
    try:
        with pytest.raises(RunError, match=r"cannot write .*events\.jsonl"):
            append_line(file, b"two and more\n", 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.read_bytes() == b"one\n"
    append_line(file, b"three\n", 4)
    assert (file.read_bytes(), (tmp_path / "events.jsonl.1").read_bytes()) == (b"three\n", b"one\n")
