"""An append-only file of records that survives `kill -9` at any instant.

A record is its length (4 bytes, big-endian), the first 8 bytes of its SHA-256, and its bytes. An append is one
write and one fsync; a torn tail, which only a crash can leave, is cut off when the journal is opened. A
damaged record in the middle ends the readable part: nothing after it can be trusted to follow from it.
"""

import hashlib
import os
from pathlib import Path

from waggle.core.files import disk_errors, sync_folder

_HEADER_BYTES = 12


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:8]


def read_records(file: Path) -> tuple[list[bytes], int]:
    """The whole records of a journal that somebody else may be writing, and how many bytes they take."""
    data = file.read_bytes() if file.exists() else b""
    records: list[bytes] = []
    position = 0
    while position + _HEADER_BYTES <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        start = position + _HEADER_BYTES
        record = data[start : start + size]
        if len(record) < size or _checksum(record) != data[position + 4 : start]:
            break
        records.append(record)
        position = start + size
    return records, position


class Journal:
    """Records in one file. Example: `Journal(file).append(b"...")`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with disk_errors(file):
            self.records, good_bytes = read_records(file)
            file.parent.mkdir(parents=True, exist_ok=True)
            created = not file.exists()
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._descriptor, good_bytes)
            if created:
                sync_folder(file.parent)
        self.size_bytes = good_bytes

    def append(self, record: bytes) -> None:
        """Add a record; it is on disk when this returns, or not in the journal at all.

        Raises:
            RunError: the disk refuses; what was there before is intact.
        """
        with disk_errors(self.file):
            data = len(record).to_bytes(4, "big") + _checksum(record) + record
            try:
                written = os.write(self._descriptor, data)
                if written != len(data):
                    raise OSError(28, "No space left on device")
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self.size_bytes)
                raise
            self.size_bytes += len(data)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)
