"""The command as a user has it: in a folder and a home of its own, judged by exit code and what it printed."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from waggle.cli import main
from waggle.core.config import load
from waggle.core.events import json_line
from waggle.core.keys import Key
from waggle.core.types import Charter, Family
from waggle.node.runfolder import RunFolder
from waggle.swarm.charter import new_charter

OWNER = Key.from_seed(b"o" * 32)


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that an error is."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("waggle: "), self.err
        return lines[0].removeprefix("waggle: ")


Waggle = Callable[..., Outcome]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, beside an empty home."""
    folder, home = tmp_path / "here", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return folder


@pytest.fixture
def waggle(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Waggle:
    """Runs `waggle` with arguments and, where there are some, lines to read."""

    def run(*arguments: str, typed: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["waggle", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, *capsys.readouterr())

    return run


def charter(*families: Family, members: tuple[bytes, ...] = ()) -> Charter:
    """A small swarm of the owner's."""
    sums = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)
    return new_charter(OWNER, "bees", families or (sums,), created_ms=5, members=members)


def made_run(path: Path, rounds: int = 3, *sets: str) -> RunFolder:
    """A node's folder as a run leaves it, without checkpoints; nobody uses it."""
    folder = RunFolder.create(path, load(None, ["model.name=tiny", *sets]), charter())
    OWNER.save(folder.key_file)
    folder.close()
    for number in range(1, rounds + 1):
        line = {"round": number, "reward": 0.25, "own_groups": 4, "foreign_groups": 2, "peers": 3, "refused": {}}
        line |= {"heldout": {"chain_sum": [number, 10]}} if number % 2 == 0 else {}
        with open(folder.metrics_file, "a") as metrics:
            metrics.write(json_line(line))
    return folder


def task_file(path: Path, num: int = 400) -> Path:
    """Questions whose answer is any text with a byte that a random model writes now and then."""
    lines = ({"question": f"letter {number}?", "answer": "(?s).*[a-mA-M0-4].*"} for number in range(num))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    """Every path below a folder, with the content of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
