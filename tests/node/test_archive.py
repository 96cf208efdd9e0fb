"""The disk side: what was committed is restored, whatever a crash left lying about, and the folder stays bounded."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.node.parts import charter_of, config
from waggle.core.codec import encode
from waggle.core.errors import RunError
from waggle.core.events import json_line
from waggle.core.types import (
    Completion,
    Family,
    Group,
    Message,
    PolicyRef,
    Rollout,
    Sampling,
    Task,
    TaskRef,
    Text,
    Verdict,
)
from waggle.node.archive import DiskArchive
from waggle.node.journal import Journal
from waggle.node.learner import Learner
from waggle.node.runfolder import RunFolder
from waggle.node.scripted import Lesson, Lessons, ScriptedLearner
from waggle.node.state import Record, Snapshot, State
from waggle.swarm.pool import Pool
from waggle.swarm.seen import Seen

CONFIG = b"c" * 32
BATCH = encode(Lessons((Lesson(CONFIG, 1.0, 2),)))


def opened(path: Path, keep: int = 1, metrics_bytes: int = 1 << 20, experience_bytes: int = 1 << 20) -> DiskArchive:
    """An archive in a run folder, made where there is none."""
    charter = charter_of([Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)])
    exists = (path / "run.json").exists()
    folder = RunFolder.open(path) if exists else RunFolder.create(path, config("model.name=scripted"), charter)
    return DiskArchive(folder, keep, metrics_bytes, experience_bytes)


def learner() -> ScriptedLearner:
    return ScriptedLearner(0.1, 0.05, 3)


def snapshot(number: int = 0, of: Learner | None = None) -> Snapshot:
    base = (of or learner()).base_digest()
    return Snapshot(State(lineage=base, round=number), base, Pool(1, 1, 1).state(), Seen().state(), ())


def record(number: int) -> Record:
    return Record(State(lineage=b"l" * 32, round=number), BATCH, (), (), (), (), json_line({"round": number}))


def played(archive: DiskArchive, of: ScriptedLearner, first: int, last: int) -> None:
    """Commit these rounds."""
    for number in range(first, last + 1):
        of.step(BATCH)
        archive.commit(record(number))


def rounds_told(path: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (path / "metrics.jsonl").read_text().splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_committed_rounds_are_restored(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    assert archive.is_empty
    archive.begin(snapshot())
    assert not archive.is_empty
    played(archive, learner(), 1, 3)
    archive.close()
    again = opened(tmp_path)
    found, records = again.restore(learner())
    assert found == snapshot()
    assert records == [record(1), record(2), record(3)]
    again.close()


def test_a_checkpoint_carries_the_weights_and_starts_the_journal_anew(tmp_path: Path) -> None:
    archive, one = opened(tmp_path), learner()
    archive.begin(snapshot())
    played(archive, one, 1, 4)
    archive.checkpoint(snapshot(4), one)
    played(archive, one, 5, 6)
    archive.close()
    again, other = opened(tmp_path), learner()
    found, records = again.restore(other)
    assert (found.state.round, [r.state.round for r in records]) == (4, [5, 6])
    for r in records:
        other.step(r.batch)
    assert other.skills == one.skills != {}
    again.close()


def test_a_second_checkpoint_of_a_round_keeps_what_was_learned_about_it(tmp_path: Path) -> None:
    archive, one = opened(tmp_path), learner()
    archive.begin(snapshot())
    played(archive, one, 1, 2)
    archive.checkpoint(snapshot(2), one)
    better = replace(snapshot(2), state=replace(snapshot(2).state, best_round=2, best_rate=0.5))
    archive.checkpoint(better, one)
    archive.close()
    again, other = opened(tmp_path), learner()
    assert again.restore(other)[0] == better
    assert other.skills == one.skills
    again.close()


def test_a_round_is_final_even_where_its_line_found_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    archive = opened(tmp_path)
    archive.begin(snapshot())
    played(archive, learner(), 1, 1)
    with monkeypatch.context() as patched:
        patched.setattr("waggle.core.files.open", full, raising=False)
        why = archive.commit(record(2))
    assert re.match(r"cannot write .*metrics\.jsonl: No space left on device", why)
    archive.close()
    assert rounds_told(tmp_path) == [1]
    again = opened(tmp_path)
    assert [r.state.round for r in again.restore(learner())[1]] == [1, 2]
    assert rounds_told(tmp_path) == [1, 2]
    again.close()


def test_rounds_that_a_full_disk_refuses_wait_for_it_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    played(archive, learner(), 1, 1)
    with monkeypatch.context() as patched:

        def full(journal: Journal, data: bytes) -> None:
            raise RunError("the disk is full")

        patched.setattr(Journal, "append", full)
        assert [archive.commit(record(number)) for number in (2, 3)] == ["the disk is full"] * 2
        assert rounds_told(tmp_path) == [1]
    assert archive.commit(record(4)) == ""
    assert rounds_told(tmp_path) == [1, 2, 3, 4]
    monkeypatch.setattr(Journal, "append", full)
    monkeypatch.setattr("waggle.node.archive.MAX_WAITING", 2)
    assert all(archive.commit(record(number)) for number in (5, 6))
    with pytest.raises(RunError):
        archive.commit(record(7))
    archive.close()


@pytest.mark.parametrize("told", ["", '{"round":1}\n', '{"round":1}\n{"round":2}\n{"rou', '{"round":1}\n{"round":2}\n'])
def test_metrics_lines_that_a_crash_kept_back_are_written(tmp_path: Path, told: str) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    played(archive, learner(), 1, 3)
    archive.close()
    assert rounds_told(tmp_path) == [1, 2, 3]
    (tmp_path / "metrics.jsonl").write_text(told)
    again = opened(tmp_path)
    again.restore(learner())
    assert rounds_told(tmp_path) == [1, 2, 3]
    again.close()


def test_lines_rotate_and_two_files_are_all_there_is(tmp_path: Path) -> None:
    archive = opened(tmp_path, metrics_bytes=60, experience_bytes=2000)
    archive.begin(snapshot())
    for number in range(1, 40):
        archive.commit(record(number))
        archive.show([(group(), "drawn")])
    archive.close()
    for name, bound in (("metrics.jsonl", 60), ("experience.jsonl", 2000)):
        sizes = [(tmp_path / f"{name}{end}").stat().st_size for end in ("", ".1")]
        assert all(bound <= size < 2 * bound for size in sizes[1:])
        assert sizes[0] < 2 * bound
    assert rounds_told(tmp_path)[-1] == 39
    assert names(tmp_path) >= {"metrics.jsonl", "metrics.jsonl.1", "experience.jsonl", "experience.jsonl.1"}
    assert not any(name.endswith(".2") for name in names(tmp_path))


def group() -> Group:
    task = Task(TaskRef("chain_sum", CONFIG, 1, 0, 0), (Message("user", "3 + 4"),), "exact", "7", b"q" * 32, 6)
    rollouts = tuple(Rollout(Completion((Text(t),), "stop"), Verdict(r)) for t, r in (("7", 1.0), ("é", None)))
    return Group(task, PolicyRef("scripted", b"w" * 32, 0), Sampling(), rollouts, b"a" * 32, 5, b"g" * 32)


def test_groups_are_shown_as_text_for_people(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.show([(group(), "drawn")])
    (line,) = [json.loads(line) for line in (tmp_path / "experience.jsonl").read_text().splitlines()]
    assert line["answers"] == [["7", 1.0], ["é", None]]
    assert (line["question"], line["truth"], line["fate"], line["author"]) == ("3 + 4", "7", "drawn", "61" * 32)
    archive.close()


def test_a_torn_line_for_people_does_not_swallow_the_next(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    archive.close()
    (tmp_path / "experience.jsonl").write_text('{"round":1}\n{"rou')
    again = opened(tmp_path)
    again.restore(learner())
    again.show([(group(), "drawn")])
    assert [json.loads(line)["round"] for line in (tmp_path / "experience.jsonl").read_text().splitlines()] == [1, 5]
    again.close()


@pytest.mark.parametrize(("keep", "kept"), [(1, [6]), (2, [4, 6]), (9, [0, 2, 4, 6])])
def test_only_so_many_checkpoints_and_one_journal_stay(tmp_path: Path, keep: int, kept: list[int]) -> None:
    archive, one = opened(tmp_path, keep), learner()
    archive.begin(snapshot())
    for number in (2, 4, 6):
        played(archive, one, number - 1, number)
        archive.checkpoint(snapshot(number), one)
    assert names(tmp_path / "checkpoints") == {f"round_{number:06d}" for number in kept}
    assert names(tmp_path / "journal") == {"round_000006.log"}
    archive.close()


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    archive, one = opened(tmp_path), learner()
    archive.begin(snapshot())
    played(archive, one, 1, 2)
    archive.checkpoint(snapshot(2), one)
    archive.export(2, one)
    archive.close()
    half = tmp_path / "checkpoints" / ".round_000004.tmp"  # a checkpoint that was being written
    half.mkdir()
    (half / "weights.safetensors").write_bytes(bytes(100))
    old = tmp_path / "checkpoints" / "round_000000"  # an older one that was about to go
    old.mkdir()
    (tmp_path / "journal" / "round_000000.log").write_bytes(b"")
    (tmp_path / "model").rename(tmp_path / ".model.old")  # a model that was being replaced
    (tmp_path / ".model.tmp").mkdir()
    again = opened(tmp_path)
    assert again.exported_round() == 2
    assert again.restore(learner())[0].state.round == 2
    assert names(tmp_path / "checkpoints") == {"round_000002"}
    assert names(tmp_path / "journal") == {"round_000002.log"}
    assert not {name for name in names(tmp_path) if name.startswith(".")}
    again.close()


def test_a_crash_between_checkpoint_and_journal_loses_nothing(tmp_path: Path) -> None:
    archive, one = opened(tmp_path), learner()
    archive.begin(snapshot())
    played(archive, one, 1, 2)
    archive.checkpoint(snapshot(2), one)
    archive.close()
    (tmp_path / "journal" / "round_000002.log").unlink()
    again = opened(tmp_path)
    found, records = again.restore(learner())
    assert (found.state.round, records) == (2, [])
    played(again, one, 3, 3)
    again.close()
    third = opened(tmp_path)
    assert [r.state.round for r in third.restore(learner())[1]] == [3]
    third.close()


def test_a_run_that_was_stopped_before_it_began_is_empty(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    (tmp_path / "checkpoints" / ".round_000000.tmp").mkdir()
    archive.close()
    again = opened(tmp_path)
    assert again.is_empty
    again.begin(snapshot())
    assert names(tmp_path / "checkpoints") == {"round_000000"}
    again.close()


def test_lost_checkpoints_are_not_taken_for_a_new_run(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    played(archive, learner(), 1, 1)
    archive.close()
    (tmp_path / "checkpoints" / "round_000000" / "state.bin").unlink()
    again = opened(tmp_path)
    with pytest.raises(RunError, match=r"state\.bin is missing or damaged"):
        again.restore(learner())
    (tmp_path / "checkpoints" / "round_000000").rmdir()
    assert not again.is_empty
    with pytest.raises(RunError, match="holds no checkpoint to resume from; start a new run"):
        again.restore(learner())
    again.close()


def test_another_model_is_refused(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    archive.close()
    again = opened(tmp_path)
    with pytest.raises(RunError, match="was started from other weights than scripted has now; put the model back"):
        again.restore(ScriptedLearner(0.1, 0.05, 4))
    again.close()


def test_a_journal_of_another_release_is_said(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    assert archive._journal is not None
    archive._journal.append(b"\x02what a later release writes")
    archive.close()
    again = opened(tmp_path)
    with pytest.raises(RunError, match=r"was written by another release of waggle .*; resume with that release"):
        again.restore(learner())
    again.close()


class Failing(ScriptedLearner):
    """A learner whose weights do not fit on the disk."""

    def save(self, folder: Path) -> None:
        (folder / "half.bin").write_bytes(b"half")
        raise OSError(28, "No space left on device")


def test_a_model_that_cannot_be_exported_leaves_the_old_one(tmp_path: Path) -> None:
    archive, one = opened(tmp_path), learner()
    assert archive.exported_round() == -1
    archive.export(3, one)
    before = (tmp_path / "model" / "skills.bin").read_bytes()
    with pytest.raises(RunError, match=r"cannot write .*model: No space left on device; free some space"):
        archive.export(4, Failing())
    assert archive.exported_round() == 3
    assert names(tmp_path / "model") == {"skills.bin", "waggle.json"}
    assert (tmp_path / "model" / "skills.bin").read_bytes() == before
    one.step(BATCH)
    archive.export(5, one)
    assert archive.exported_round() == 5
    assert (tmp_path / "model" / "skills.bin").read_bytes() != before
    archive.close()


def test_a_checkpoint_that_cannot_be_written_leaves_the_journal_in_charge(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.begin(snapshot())
    played(archive, learner(), 1, 2)
    with pytest.raises(RunError, match="No space left on device"):
        archive.checkpoint(snapshot(2), Failing())
    archive.close()
    again = opened(tmp_path)
    assert [r.state.round for r in again.restore(learner())[1]] == [1, 2]
    assert names(tmp_path / "checkpoints") == {"round_000000"}
    again.close()
