"""Nodes as their owners run them: separate commands on one network, which this test alone can see."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import task_file
from waggle.net.namespace import NOT_ALLOWED

SETTINGS = (
    *("model.name=tiny", "model.threads=1", "model.memory_gb=2", "round.local=2", "round.foreign=2"),
    *("round.group_size=4", "round.refills=0", "round.max_tokens=4", "eval.every=0", "eval.report=4"),
    "share.publish=all",
)
LOOK_S = 0.2
FOUNDED = ("tasks.set=none", "tasks.file=asked.jsonl", "tasks.grader=regex", "tasks.share_file=true")


class Machine:
    """Commands in a network namespace, each with a home of its own."""

    def __init__(self, here: Path, holder: int) -> None:
        self.here, self._holder = here, holder
        self.running: list[subprocess.Popen[str]] = []

    def start(self, who: str, *arguments: str) -> "subprocess.Popen[str]":
        (self.here / who).mkdir(exist_ok=True)
        enter = [sys.executable, "-m", "waggle.net.namespace", "enter", str(self._holder)]
        process = subprocess.Popen(
            [*enter, sys.executable, "-m", "waggle", *arguments],
            cwd=self.here,
            env={**os.environ, "HOME": str(self.here / who), "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def done(self, who: str, *arguments: str) -> tuple[int, str]:
        process = self.start(who, *arguments)
        out, _ = process.communicate()
        return process.returncode, out


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    holder = subprocess.Popen(
        [sys.executable, "-m", "waggle.net.namespace", "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    if holder.stdout.readline() != b"ready\n":
        assert holder.wait() == NOT_ALLOWED
        pytest.skip("this system gives processes no network of their own, and real nodes are tested only in one")
    made = Machine(tmp_path, holder.pid)
    try:
        yield made
    finally:
        for process in made.running:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        holder.kill()
        holder.communicate()


def rounds(folder: Path) -> list[dict[str, int]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(done: Callable[[], bool], *running: "subprocess.Popen[str]") -> None:
    """Wait for something that nodes do, as long as they run."""
    while not done():
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
                raise AssertionError(process.communicate()[0])


@pytest.mark.slow
def test_a_node_joins_by_ticket_shares_and_comes_back_after_a_kill(machine: Machine) -> None:
    here = machine.here
    task_file(here / "asked.jsonl")
    sets = [f"--set={setting}" for setting in SETTINGS]
    first = machine.start("one", "join", "--run", "a", *sets, *(f"--set={setting}" for setting in FOUNDED))
    until(lambda: (here / "a" / "ticket").exists(), first)
    again = ("join", "a/ticket", "--run", "b", "--continue", "--quiet", *sets)
    second = machine.start("two", *again)  # the task file comes from the first
    until(lambda: sum(line["foreign_groups"] for line in rounds(here / "b")) > 2, first, second)
    code, said = machine.done("two", "doctor", "--reach", "b")
    assert code == 0, said
    assert "answers, after" in said
    assert "reaches this machine at UDP port" in said
    code, said = machine.done("two", "join", "a/ticket", "--run", "c", *sets)
    assert (code, "is in use by another node on this machine" in said) == (6, True)
    second.kill()
    second.communicate()
    (here / "a" / "ticket").rename(here / "old")  # after a restart nobody is needed who was known before
    before = len(rounds(here / "b"))
    second = machine.start("two", "join", "--resume", "b", "--quiet")
    until(lambda: sum(line["foreign_groups"] for line in rounds(here / "b")[before + 1 :]) > 2, first, second)
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
    outs = [process.communicate()[0] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outs
    assert all("Traceback" not in out for out in outs)
    for run in ("a", "b"):
        assert [line["round"] for line in rounds(here / run)] == list(range(1, len(rounds(here / run)) + 1))
    assert sum(line["foreign_groups"] for line in rounds(here / "a")) > 0
    founded = ("--set=tasks.set=none", "--set=tasks.file=asked.jsonl", "--out", "other")
    assert machine.done("three", "new", "wasps", *founded)[0] == 0
    code, said = machine.done("three", "join", "other", "--run", "b", "--continue")
    assert (code, "'wasps' and b holds a node of another one, 'swarm of one'" in said) == (2, True), said
