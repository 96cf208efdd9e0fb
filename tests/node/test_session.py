"""A node whole: played to its end, interrupted and resumed, on a disk that becomes full, of damaged folders."""

import asyncio
import builtins
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
from waggle.core.clock import SystemClock
from waggle.core.config import Config, load, override_run
from waggle.core.errors import RunError
from waggle.net.memory import MemoryNetwork
from waggle.node import build, session
from waggle.node.runfolder import RunFolder, is_locked
from waggle.node.session import Session, interruptible, open_node, play_node, prepare
from waggle.node.status import read_status
from waggle.swarm.charter import new_charter, read_ticket
from waggle.tasks.grade import Graders

SETS = (
    *("model.name=tiny", "model.threads=1", "round.local=2", "round.foreign=1", "round.group_size=4"),
    *("round.refills=0", "eval.every=2", "eval.steer=4", "eval.report=6", "learn.learning_rate=0.001"),
    *("tasks.file=x", "tasks.share_file=true", "run.rounds=4", "share.publish=all"),
)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes and the real network have their own tests."""
    monkeypatch.setattr("waggle.node.session.Graders", partial(Graders, workers=0))
    network = MemoryNetwork(0, SystemClock())
    monkeypatch.setattr("waggle.node.place.transport_for", lambda folder, key, *_: network.attach(key.id))


def screen() -> Console:
    return Console(file=StringIO(), width=160)


def said(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def made(path: Path, *sets: str) -> RunFolder:
    """The folder of a new node, locked."""
    path.mkdir(parents=True, exist_ok=True)
    charter = new_charter(keys(1)[0], "test", [easy_family(path)], created_ms=1_700_000_000_000)
    return prepare(path, load(None, [*SETS, *sets]), keys(1)[0], charter, [])


def opened(folder: RunFolder, change: Callable[[Config], Config] = lambda config: config) -> tuple[Console, Session]:
    console = screen()
    return console, open_node(console, folder, folder.path / build.FILES, change)


def started(path: Path, *sets: str) -> tuple[Console, Session]:
    return opened(made(path, *sets))


def resumed(path: Path, change: Callable[[Config], Config] = lambda config: config) -> tuple[Console, Session]:
    return opened(RunFolder.open(path), change)


def begun(path: Path, *sets: str) -> Session:
    return started(path, *sets)[1]


def continued(path: Path, change: Callable[[Config], Config] = lambda config: config) -> Session:
    return resumed(path, change)[1]


def metrics(path: Path) -> bytes:
    return (path / "metrics.jsonl").read_bytes()


def standing(path: Path) -> tuple[str, int]:
    (node,) = read_status(path)
    return node.state, node.round


def at(number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, after this many rounds."""
    play, count = session.play, 0

    async def playing(*arguments: Any) -> Any:
        nonlocal count
        report = await play(*arguments)
        count += 1
        if count == number:
            act()
        return report

    monkeypatch.setattr(session, "play", playing)


@pytest.mark.slow
def test_a_node_ends_by_itself_with_a_model(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    console, node = started(tmp_path / "run")
    play_node(node)
    text = said(console)
    folder = tmp_path / "run"
    assert "model tiny, 1 thread" in text
    assert f"listening on memory; {folder}/ticket invites others" in text
    assert "no peer reachable, training alone" in text
    assert (folder / "model" / "model.safetensors").exists()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round_000004"]
    assert standing(folder) == ("ended", 4)
    lines = [json.loads(line) for line in metrics(folder).splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert ["heldout" in line for line in lines] == [False, True, False, True]
    assert signal.getsignal(signal.SIGINT) is before
    ticket = read_ticket((folder / "ticket").read_text())
    assert ticket.addresses == (f"{keys(1)[0].id.hex()}@memory",)


@pytest.mark.slow
def test_equal_seeds_give_equal_runs(tmp_path: Path) -> None:
    for run, seed in (("first", 0), ("second", 0), ("third", 1)):
        play_node(begun(tmp_path / run, f"run.seed={seed}"))
    for name in ("charter.bin", "metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert metrics(tmp_path / "first") != metrics(tmp_path / "third")


@pytest.mark.slow
def test_a_quiet_node_without_evaluation_exports_its_last_weights(tmp_path: Path) -> None:
    console, node = started(tmp_path / "run", "eval.every=0", "run.rounds=2")
    play_node(node, quiet=True)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert "reward" not in said(console)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_node_ends_cleanly_and_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    play_node(begun(tmp_path / "straight"))
    with monkeypatch.context() as patched:
        at(3, lambda: signal.raise_signal(number), patched)
        play_node(begun(tmp_path / "run"))
    assert standing(tmp_path / "run") == ("ended", 3)  # the round in progress was finished, no other begun
    console, node = resumed(tmp_path / "run")
    assert "run goes on after round 3 (0 rounds replayed)" in said(console)
    play_node(node)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_loses_one_round_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        at(3, twice, patched)
        with pytest.raises(KeyboardInterrupt):
            play_node(begun(tmp_path / "run"))
    assert standing(tmp_path / "run") == ("stopped", 3)
    console, again = resumed(tmp_path / "run")
    assert "goes on after round 3 (3 rounds replayed)" in said(console)
    play_node(again)
    assert standing(tmp_path / "run") == ("ended", 4)


def test_a_tied_node_ends_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    with interruptible(tied=True) as stopped:
        os.write(writing, b"still here\n")
        assert not stopped()
        os.close(writing)
        while not stopped():
            asyncio.run(asyncio.sleep(0.001))
    os.close(reading)


class Disk:
    """A disk that is full from some write on: whatever writes to a file in the run fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, only: str = "") -> None:
        self.full = False
        self._path, self._only = path, only
        real = os.open

        def opening(file: Any, flags: int, *arguments: Any, **options: Any) -> int:
            self.check(file, bool(flags & (os.O_WRONLY | os.O_RDWR)))
            return real(file, flags, *arguments, **options)

        def writing(descriptor: int, data: bytes) -> int:
            self.check(os.readlink(f"/proc/self/fd/{descriptor}"), True)
            return write(descriptor, data)

        write = os.write
        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(os, "write", writing)

    def check(self, file: Any, writes: bool) -> None:
        if self.full and writes and str(file).startswith(str(self._path)) and self._only in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
@pytest.mark.parametrize("only", ["journal", "state.bin"])
def test_a_disk_that_becomes_full_ends_in_one_sentence_and_the_node_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str
) -> None:
    play_node(begun(tmp_path / "straight"))
    with monkeypatch.context() as patched:
        disk = Disk(patched, tmp_path / "run", only)
        at(3, lambda: setattr(disk, "full", True), patched)
        with pytest.raises(RunError, match=r"^cannot write .*: No space left on device; free some space .* resume"):
            play_node(begun(tmp_path / "run"))
    assert standing(tmp_path / "run")[1] == (3 if only == "journal" else 4)
    assert not is_locked(tmp_path / "run")
    play_node(continued(tmp_path / "run"))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")
    assert standing(tmp_path / "run") == ("ended", 4)


@pytest.mark.slow
def test_training_goes_on_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is full for two rounds, evaluation and checkpoints included; afterwards nothing is missing."""
    sets = ("run.rounds=6", "run.checkpoint_minutes=0.0001")
    play_node(begun(tmp_path / "straight", *sets))
    disk = Disk(monkeypatch, tmp_path / "run")
    opening, play, count = builtins.open, session.play, 0

    def refusing(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        disk.check(file, "r" not in mode)
        return opening(file, mode, *arguments, **options)

    async def playing(*arguments: Any) -> Any:
        nonlocal count
        report = await play(*arguments)
        count += 1
        disk.full = count in (2, 3)  # during rounds 3 and 4
        return report

    monkeypatch.setattr(builtins, "open", refusing)
    monkeypatch.setattr(session, "play", playing)
    play_node(begun(tmp_path / "run", *sets))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "straight")
    assert standing(tmp_path / "run") == ("ended", 6)
    told = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert next(event["count"] for event in told if event["event"] == "events-lost") > 2
    assert not is_locked(tmp_path / "run")


@pytest.mark.slow
def test_a_paused_node_plays_no_round_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "run")
    waits: list[str] = []

    async def looked(seconds: float) -> None:
        waits.append(read_status(tmp_path / "run")[0].says)
        if len(waits) == 3:
            folder.pause_file.unlink()

    monkeypatch.setattr(session.asyncio, "sleep", looked)
    folder.pause_file.touch()
    _, node = opened(folder)
    play_node(node)
    assert waits == ["resting: paused; `waggle pause --off` lets it go on; has not played a round yet"] * 3
    assert standing(tmp_path / "run") == ("ended", 4)
    assert read_status(tmp_path / "run")[0].notes == {}


@pytest.mark.slow
def test_a_node_whose_bytes_are_used_up_goes_offline_and_trains_alone(tmp_path: Path) -> None:
    _, node = started(tmp_path / "run", "net.day_mb=0.001")
    node.host.pace.meter = lambda: 1000
    play_node(node)
    assert standing(tmp_path / "run") == ("ended", 4)
    assert read_status(tmp_path / "run")[0].says.startswith("offline: the bytes of the day are used up")
    _, again = resumed(tmp_path / "run", lambda config: override_run(config, ["run.rounds=6", "net.day_mb=0"]))
    play_node(again)
    assert standing(tmp_path / "run") == ("ended", 6)
    assert read_status(tmp_path / "run")[0].notes == {}


@pytest.mark.slow
def test_a_node_that_has_ended_can_be_lengthened(tmp_path: Path) -> None:
    play_node(begun(tmp_path / "run", "run.rounds=2"))
    play_node(continued(tmp_path / "run", lambda config: override_run(config, ["run.rounds=3"])))
    assert standing(tmp_path / "run") == ("ended", 3)


@pytest.mark.slow
def test_a_node_in_use_is_not_resumed_by_another(tmp_path: Path) -> None:
    _, node = started(tmp_path / "run")
    with pytest.raises(RunError, match="another process is using"):
        resumed(tmp_path / "run")
    node.close()
    _, again = resumed(tmp_path / "run")
    again.close()


@pytest.mark.slow
def test_a_resume_that_fails_leaves_the_folder_free(tmp_path: Path) -> None:
    started(tmp_path / "run")[1].close()
    (tmp_path / "run" / "checkpoints" / "round_000000" / "state.bin").write_bytes(b"\x01damaged")
    with pytest.raises(RunError, match=r"state\.bin is missing or damaged"):
        resumed(tmp_path / "run")
    assert not is_locked(tmp_path / "run")
