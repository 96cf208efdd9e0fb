"""The disk side of a node: journal, checkpoints, the exported model, and the files people read.

Order is what makes `kill -9` harmless. A round is committed by one journal append; its metrics line follows
and is written again on resume where it is missing. A checkpoint is a folder that appears whole; the journal
that starts from it is created after, and older ones go last. Weights at any round are the newest checkpoint's
plus the journal's steps. Where the disk refuses a round, it waits in memory for the next try, so that training goes on;
a kill then loses those that wait. `NoArchive` is the null object that simulations use.
"""

import shutil
from collections import deque
from pathlib import Path
from typing import Protocol

from waggle.core.codec import decode_stored, encode
from waggle.core.errors import DecodeError, RunError
from waggle.core.events import cut_torn_line, json_line, read_lines
from waggle.core.files import append_line, disk_errors, folder_atomic, recover_folder, write_atomic
from waggle.core.types import Group
from waggle.node.journal import Journal
from waggle.node.learner import Learner
from waggle.node.parcel import Inbox, Parcel
from waggle.node.recording import Recording
from waggle.node.runfolder import RunFolder, read_noun
from waggle.node.state import MAX_RECORD_BYTES, Arrival, Record, Snapshot

MAX_WAITING = 256
"""Rounds that wait for a disk before the node gives up."""


class Archive(Protocol):
    """Where a node keeps what must outlive it."""

    def commit(self, record: Record) -> str:
        """Make a round final. Returns why it has to wait for the next call, or nothing.

        Raises:
            RunError: the disk has refused too many.
        """
        ...

    def checkpoint(self, snapshot: Snapshot, learner: Learner) -> None:
        """Store the whole state; the journal starts anew from it."""
        ...

    def export(self, number: int, learner: Learner) -> None:
        """Replace the exported model by the current weights."""
        ...

    def exported_round(self) -> int:
        """The round of the exported model's weights, or -1."""
        ...

    def exported(self, number: int) -> Path | None:
        """Where the exported model is, if its weights are those of this round."""
        ...

    def show(self, groups: list[tuple[Group, str]]) -> None:
        """Append groups, each with what became of it, as text for people."""
        ...

    def take_parcel(self, num: int, max_bytes: int) -> Parcel | None:
        """The first of the experience that came by file, if some waits; a commit takes it away.

        Raises:
            DecodeError: it is damaged; a commit takes it away all the same.
        """
        ...


class NoArchive:
    """Keeps nothing."""

    def commit(self, record: Record) -> str:
        return ""

    def checkpoint(self, snapshot: Snapshot, learner: Learner) -> None: ...
    def export(self, number: int, learner: Learner) -> None: ...
    def exported_round(self) -> int:
        return -1

    def exported(self, number: int) -> Path | None:
        return None

    def show(self, groups: list[tuple[Group, str]]) -> None: ...
    def take_parcel(self, num: int, max_bytes: int) -> Parcel | None:
        return None


class DiskArchive:
    """The archive in a run folder.

    Args:
        folder: an open run folder.
        keep: checkpoints kept.
        metrics_bytes: size at which metrics.jsonl rotates.
        experience_bytes: likewise of experience.jsonl.
        record_bytes: most of what came from peers that is kept for a replay; 0 keeps none.
    """

    def __init__(
        self, folder: RunFolder, keep: int, metrics_bytes: int, experience_bytes: int, record_bytes: int = 0
    ) -> None:
        self._folder, self._keep = folder, keep
        self._metrics_bytes, self._experience_bytes = metrics_bytes, experience_bytes
        self._journal: Journal | None = None
        self._waiting: deque[Record] = deque()
        """Rounds that the disk has refused so far."""
        self._unwritten = ""
        """Metrics lines likewise."""
        self._recording = Recording(folder.arrivals_file, record_bytes)
        self._unrecorded: deque[Arrival] = deque()
        """What came in with rounds, likewise."""
        self._inbox = Inbox(folder)
        with disk_errors(folder.path):
            folder.checkpoints.mkdir(exist_ok=True)
            folder.journals.mkdir(exist_ok=True)
            for half_made in folder.checkpoints.glob(".round_*.tmp"):
                shutil.rmtree(half_made)
        recover_folder(folder.model)
        cut_torn_line(folder.experience_file)

    def begin(self, snapshot: Snapshot) -> None:
        """A new run: the state before the first round; base weights are not stored."""
        with folder_atomic(self._checkpoint(0)) as folder:
            write_atomic(folder / "state.bin", encode(snapshot))
        self._open_journal(0)

    @property
    def is_empty(self) -> bool:
        """Whether the run was stopped before it began."""
        begun = any(self._folder.checkpoints.glob("round_*")) or self._folder.metrics_file.exists()
        return not begun

    def restore(self, learner: Learner) -> tuple[Snapshot, list[Record]]:
        """The newest checkpoint, its weights loaded into the learner, and the rounds since.

        Raises:
            RunError: nothing to resume from, damaged, or of another model.
        """
        newest = self._folder.newest_checkpoint()
        if newest is None:
            raise RunError(f"{self._folder.path} holds no checkpoint to resume from; start a new run")
        snapshot = read_noun(Snapshot, newest / "state.bin")
        if snapshot.base != learner.base_digest():
            raise RunError(
                f"{self._folder.path} was started from other weights than {learner.model} has now; "
                "put the model back as it was, or start a new run"
            )
        if snapshot.state.round:
            learner.load(newest)
        self._open_journal(_number(newest))
        records = self._records()
        self._complete_metrics(records)
        self._recording.complete(records)
        self._clean(_number(newest))
        return snapshot, records

    def _records(self) -> list[Record]:
        assert self._journal is not None
        try:
            return [decode_stored(Record, data, MAX_RECORD_BYTES) for data in self._journal.records]
        except DecodeError as error:
            raise RunError(
                f"{self._journal.file} was written by another release of waggle ({error}); resume with that release"
            ) from error

    def commit(self, record: Record) -> str:
        self._waiting.append(record)
        try:
            self._write_waiting()
        except RunError as error:
            if len(self._waiting) > MAX_WAITING:
                raise
            return str(error)
        return ""

    def _write_waiting(self) -> None:
        assert self._journal is not None
        while self._waiting:
            self._journal.append(encode(self._waiting[0]))
            done = self._waiting.popleft()
            self._unwritten += done.metrics
            self._unrecorded.append(done.arrival)
            self._inbox.clear()
        append_line(self._folder.metrics_file, self._unwritten.encode(), self._metrics_bytes)
        self._unwritten = ""
        while self._unrecorded:
            self._recording.add(self._unrecorded[0])
            self._unrecorded.popleft()

    def take_parcel(self, num: int, max_bytes: int) -> Parcel | None:
        return self._inbox.take(num, max_bytes)

    def checkpoint(self, snapshot: Snapshot, learner: Learner) -> None:
        self._write_waiting()
        number = snapshot.state.round
        if self._checkpoint(number).exists():  # the weights are the same, what is known of them may be more
            write_atomic(self._checkpoint(number) / "state.bin", encode(snapshot))
        else:
            with folder_atomic(self._checkpoint(number)) as folder:
                learner.save(folder)
                write_atomic(folder / "state.bin", encode(snapshot))
        self._open_journal(number)
        self._clean(number)

    def export(self, number: int, learner: Learner) -> None:
        with folder_atomic(self._folder.model) as folder:
            learner.export(folder)
            write_atomic(folder / "waggle.json", json_line({"round": number, "model": learner.model}).encode())

    def exported_round(self) -> int:
        for line in read_lines(self._folder.model / "waggle.json"):
            return int(line.get("round", -1))
        return -1

    def exported(self, number: int) -> Path | None:
        return self._folder.model if self.exported_round() == number else None

    def show(self, groups: list[tuple[Group, str]]) -> None:
        lines = "".join(json_line(_readable(group, fate)) for group, fate in groups)
        append_line(self._folder.experience_file, lines.encode(), self._experience_bytes)

    def close(self) -> None:
        """Give files and lock back."""
        if self._journal is not None:
            self._journal.close()
        self._recording.close()
        self._folder.close()

    def _checkpoint(self, number: int) -> Path:
        return self._folder.checkpoints / f"round_{number:06d}"

    def _open_journal(self, number: int) -> None:
        if self._journal is not None:
            self._journal.close()
        self._journal = Journal(self._folder.journals / f"round_{number:06d}.log")

    def _clean(self, newest: int) -> None:
        numbers = sorted(_number(path) for path in self._folder.checkpoints.glob("round_*"))
        with disk_errors(self._folder.path):
            for number in [n for n in numbers if n < newest][: max(0, len(numbers) - self._keep)]:
                shutil.rmtree(self._checkpoint(number), ignore_errors=True)
            for journal in self._folder.journals.glob("round_*.log"):
                if _number(journal) < newest:
                    journal.unlink(missing_ok=True)

    def _complete_metrics(self, records: list[Record]) -> None:
        """Write the lines of committed rounds that a crash kept from the file."""
        cut_torn_line(self._folder.metrics_file)
        last = max((int(line["round"]) for line in read_lines(self._folder.metrics_file)), default=0)
        for record in records:
            if record.state.round > last:
                append_line(self._folder.metrics_file, record.metrics.encode(), self._metrics_bytes)


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("round_"))


def _readable(group: Group, fate: str) -> dict[str, object]:
    return {
        "round": group.round,
        "author": group.author,
        "env": group.task.ref.env,
        "fate": fate,
        "question": group.task.prompt[-1].content,
        "truth": group.task.truth,
        "answers": [[r.completion.text, r.verdict.reward] for r in group.rollouts],
    }
