"""Writing files so that a crash leaves the old one or the new one, never half of either."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from waggle.core.errors import RunError, WaggleError


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one sentence.

    Raises:
        RunError: naming the path, the cause and what to do.
    """
    try:
        yield
    except WaggleError:
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        raise RunError(
            f"cannot write {where}: {cause}; free some space or choose another folder, then resume the run"
        ) from error


def write_atomic(target: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `target` by `data` in one step that survives a power cut."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with disk_errors(target):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def append_line(file: Path, data: bytes, max_bytes: int) -> None:
    """Add whole lines to a file; at `max_bytes` it becomes `NAME.1` and a new one starts.

    Raises:
        RunError: the disk refuses; nothing of them is in the file then.
    """
    with disk_errors(file):
        if file.exists() and file.stat().st_size >= max_bytes:
            file.replace(file.with_suffix(file.suffix + ".1"))
        with open(file, "ab", buffering=0) as handle:
            before = handle.tell()
            try:
                if handle.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                handle.truncate(before)
                raise


@contextlib.contextmanager
def folder_atomic(target: Path) -> Iterator[Path]:
    """A fresh folder to fill that becomes `target` on a clean exit, and vanishes on any other."""
    temporary = target.with_name(f".{target.name}.tmp")
    with disk_errors(target):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    _sync_file(file)
            if target.exists():
                retired = target.with_name(f".{target.name}.old")
                shutil.rmtree(retired, ignore_errors=True)
                os.replace(target, retired)
                os.replace(temporary, target)
                shutil.rmtree(retired, ignore_errors=True)
            else:
                os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Finish what a crash inside `folder_atomic` left: bring the old folder back, drop half-made ones."""
    retired = target.with_name(f".{target.name}.old")
    with disk_errors(target):
        if retired.exists() and not target.exists():
            os.replace(retired, target)
        for left in (retired, target.with_name(f".{target.name}.tmp")):
            shutil.rmtree(left, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())
