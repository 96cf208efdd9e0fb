"""Sessions whole: to the table at the end, interrupted and resumed, on a disk that becomes full, of damaged folders."""

import asyncio
import errno
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.node.parts import easy_family, keys
from waggle.core.config import Config, load, override_run
from waggle.core.errors import RunError
from waggle.node import session
from waggle.node.runfolder import is_locked
from waggle.node.status import read_status
from waggle.node.view import View
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders

SETS = (
    *("model.name=tiny", "model.threads=1", "round.local=2", "round.foreign=1", "round.group_size=4"),
    *("round.refills=0", "eval.every=2", "eval.steer=4", "eval.report=6", "learn.learning_rate=0.001"),
    *("tasks.file=x", "tasks.share_file=true", "run.rounds=4", "share.publish=all"),
)


@pytest.fixture(autouse=True)
def _graders_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes have their own tests."""
    monkeypatch.setattr("waggle.node.session.Graders", partial(Graders, workers=0))


def screen() -> Console:
    return Console(file=StringIO(), width=160)


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def started(path: Path, num: int = 2, *sets: str) -> tuple[Console, session.Session]:
    """A new run in `path`, not yet played."""
    path.mkdir(parents=True, exist_ok=True)
    config = load(None, [*SETS, *sets])
    family = easy_family(path)
    charter = new_charter(keys(num)[0], "test", [family], created_ms=1_700_000_000_000)
    console = screen()
    return console, session.start(console, path, config, keys(num), charter)


def resumed(path: Path, change: Callable[[Config], Config] = lambda config: config) -> tuple[Console, session.Session]:
    console = screen()
    return console, session.resume(console, path, change)


def metrics(path: Path, num: int = 2) -> list[bytes]:
    folders = [path / f"node-{number}" for number in range(1, num + 1)] if num > 1 else [path]
    return [(folder / "metrics.jsonl").read_bytes() for folder in folders]


def rounds(path: Path) -> list[int]:
    return [status.round for status in read_status(path)]


def at(number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, after this many rounds of all nodes together."""
    show, count = View.show, 0

    def showing(view: View, *arguments: Any) -> None:
        nonlocal count
        show(view, *arguments)
        count += 1
        if count == number:
            act()

    monkeypatch.setattr(View, "show", showing)


@pytest.mark.slow
def test_a_run_ends_by_itself_with_the_table(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    console, made = started(tmp_path / "run")
    asyncio.run(session.run(made))
    text = said(console)
    assert "2 nodes, model tiny, 1 threads" in text
    assert "own answers to 6 held-out questions: share right, 95 % interval" in text
    assert "held-out questions that were trained on: 0" in text
    assert f"waggle chat {tmp_path}/run/node-1/model" in text
    for number in (1, 2):
        folder = tmp_path / "run" / f"node-{number}"
        assert str(folder / "model") in text
        assert (folder / "model" / "model.safetensors").exists()
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round_000004"]
        assert not is_locked(folder)
    assert [status.state for status in read_status(tmp_path / "run")] == ["ended"] * 2
    lines = [json.loads(line) for line in metrics(tmp_path / "run")[0].splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert ["heldout" in line for line in lines] == [False, True, False, True]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_one_node_trains_alone(tmp_path: Path) -> None:
    console, made = started(tmp_path / "run", 1, "eval.every=0", "run.rounds=2")
    asyncio.run(session.run(made))
    assert "1 node, model tiny" in said(console)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "node-1").exists()
    assert "no peer reachable, training alone" in said(console)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    _, straight = started(tmp_path / "straight")
    asyncio.run(session.run(straight))
    console, made = started(tmp_path / "run")
    with monkeypatch.context() as patched:
        at(3, lambda: signal.raise_signal(number), patched)
        asyncio.run(session.run(made))
    text = said(console)
    assert sum(rounds(tmp_path / "run")) == 3  # the round in progress was finished, no other begun
    assert "stopping: the last round is complete, writing checkpoints ..." in text
    assert f"go on with: waggle swarm --resume {tmp_path}/run" in text
    assert "asking 6 held-out questions of every model" not in text
    assert [status.state for status in read_status(tmp_path / "run")] == ["ended"] * 2
    console, again = resumed(tmp_path / "run")
    assert "(0 rounds replayed)" in said(console)
    asyncio.run(session.run(again))
    assert "before the first round" not in said(console)  # the baseline was kept
    assert "held-out questions that were trained on: 0" in said(console)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_loses_one_round_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    _, made = started(tmp_path / "run")
    with monkeypatch.context() as patched:
        at(3, twice, patched)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(session.run(made))
    assert sum(rounds(tmp_path / "run")) == 3
    assert [status.state for status in read_status(tmp_path / "run")] == ["stopped"] * 2
    console, again = resumed(tmp_path / "run")
    assert "node-1 goes on after round" in said(console)
    asyncio.run(session.run(again))
    assert rounds(tmp_path / "run") == [4, 4]


class Disk:
    """A disk that is full from some write on: whatever writes to a file in the run fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, only: str = "") -> None:
        self.full = False
        real = os.open

        def opening(file: Any, flags: int, *arguments: Any, **options: Any) -> int:
            self._check(path, only, file, bool(flags & (os.O_WRONLY | os.O_RDWR)))
            return real(file, flags, *arguments, **options)

        def writing(descriptor: int, data: bytes) -> int:
            self._check(path, only, os.readlink(f"/proc/self/fd/{descriptor}"), True)
            return write(descriptor, data)

        write = os.write
        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(os, "write", writing)

    def _check(self, path: Path, only: str, file: Any, writes: bool) -> None:
        if self.full and writes and str(file).startswith(str(path)) and only in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
@pytest.mark.parametrize("only", ["journal", "state.bin"])
def test_a_disk_that_becomes_full_ends_in_one_sentence_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    _, straight = started(tmp_path / "straight")
    asyncio.run(session.run(straight))
    _, made = started(tmp_path / "run")
    with monkeypatch.context() as patched:
        disk = Disk(patched, tmp_path / "run", only)
        at(3, lambda: setattr(disk, "full", True), patched)
        with pytest.raises(RunError, match=r"^cannot write .*: No space left on device; free some space .* resume"):
            asyncio.run(session.run(made))
    assert sum(rounds(tmp_path / "run")) == (3 if only == "journal" else 8)
    assert not any(is_locked(tmp_path / "run" / f"node-{number}") for number in (1, 2))
    _, again = resumed(tmp_path / "run")
    asyncio.run(session.run(again))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")
    assert [status.state for status in read_status(tmp_path / "run")] == ["ended"] * 2


@pytest.mark.slow
def test_a_run_that_has_ended_can_be_lengthened(tmp_path: Path) -> None:
    _, made = started(tmp_path / "run", 2, "run.rounds=2")
    asyncio.run(session.run(made))
    _, again = resumed(tmp_path / "run", lambda config: override_run(config, ["run.rounds=3"]))
    asyncio.run(session.run(again))
    assert rounds(tmp_path / "run") == [3, 3]


@pytest.mark.slow
def test_a_run_in_use_is_not_resumed_by_another(tmp_path: Path) -> None:
    _, made = started(tmp_path / "run")
    with pytest.raises(RunError, match="another process is using"):
        resumed(tmp_path / "run")
    made.close()
    _, again = resumed(tmp_path / "run")
    again.close()


@pytest.mark.slow
def test_a_resume_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    _, made = started(tmp_path / "run")
    made.close()
    folder = tmp_path / "run" / "node-2"
    (folder / "checkpoints" / "round_000000" / "state.bin").write_bytes(b"\x01damaged")
    with pytest.raises(RunError, match=r"state\.bin is missing or damaged"):
        resumed(tmp_path / "run")
    assert not any(is_locked(tmp_path / "run" / f"node-{number}") for number in (1, 2))
