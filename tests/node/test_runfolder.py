"""The run folder: one process at a time, one format version, and damage said in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.parts import charter_of, config
from waggle.core.errors import RunError
from waggle.core.types import Charter, Family
from waggle.node.runfolder import (
    FORMAT,
    RunFolder,
    describe,
    is_locked,
    migrate,
    node_folders,
    read_description,
    read_noun,
)

SETTINGS = config("model.name=scripted", "round.local=5")
CHARTER = charter_of([Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 0, "", 6)])


def made(path: Path) -> Path:
    """A run folder that nobody uses."""
    RunFolder.create(path, SETTINGS, CHARTER).close()
    return path


def test_what_was_created_is_opened(tmp_path: Path) -> None:
    folder = RunFolder.open(made(tmp_path / "deep" / "run"))
    assert folder.config() == SETTINGS
    assert folder.charter() == CHARTER
    assert read_description(folder.path)["kind"] == "node"
    folder.close()


def test_a_second_opener_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    first = RunFolder.open(path)
    assert is_locked(path)
    with pytest.raises(RunError, match=r"another process is using .*run; stop it first"):
        RunFolder.open(path)
    first.close()
    first.close()
    assert not is_locked(path)
    RunFolder.open(path).close()


def test_a_process_that_dies_gives_the_folder_back(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    code = (
        "import os, sys; from pathlib import Path; from waggle.node.runfolder import RunFolder\n"
        "folder = RunFolder.open(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"locked\n"
    with pytest.raises(RunError, match="another process"):
        RunFolder.open(path)
    child.kill()
    child.communicate()
    RunFolder.open(path).close()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    path = made(tmp_path / "run")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(RunError, match="already holds a run; continue it with --resume"):
        RunFolder.create(path, SETTINGS, CHARTER)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is not a run folder"),
        (b"", "cannot be read; the folder is damaged"),
        (b"{", "cannot be read; the folder is damaged"),
        (b"[1]", "cannot be read; the folder is damaged"),
        (b"{}", "cannot be read; the folder is damaged"),
        (b"\xff\xfe", "cannot be read; the folder is damaged"),
        (b'{"format": 9, "release": "9.1"}', "has run format 9 and this release .* use the release that made it .9.1."),
        (b'{"format": 0}', r"has run format 0 .*\(unknown\)"),
    ],
)
def test_a_description_that_cannot_be_used(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = made(tmp_path / "run")
    (path / "run.json").unlink()
    if content is not None:
        (path / "run.json").write_bytes(content)
    for look in (RunFolder.open, node_folders, read_description):
        with pytest.raises(RunError, match=says):
            look(path)
    assert not is_locked(path)


@pytest.mark.parametrize("content", [None, b"[round]\nlocal = 'six'\n", b"= 3", b"\xff"])
def test_a_configuration_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    folder = RunFolder(made(tmp_path / "run"))
    folder.config_file.unlink()
    if content is not None:
        folder.config_file.write_bytes(content)
    with pytest.raises(RunError, match=r"the run folder .*run is damaged .*; start a new run"):
        folder.config()


@pytest.mark.parametrize("content", [None, b"", b"\x01", b"\x02\x90"])
def test_a_charter_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    folder = RunFolder(made(tmp_path / "run"))
    folder.charter_file.unlink()
    if content is not None:
        folder.charter_file.write_bytes(content)
    with pytest.raises(RunError, match=r"charter.bin is missing or damaged"):
        folder.charter()


def test_a_noun_above_its_bound_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(made(tmp_path / "run"))
    assert read_noun(Charter, folder.charter_file) == CHARTER
    with pytest.raises(RunError, match="at most 10 are accepted"):
        read_noun(Charter, folder.charter_file, max_bytes=10)


def test_the_nodes_of_a_swarm_folder_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    describe(tmp_path / "run", "swarm")
    for number in (10, 2, 1):
        made(tmp_path / "run" / f"node-{number}")
    (tmp_path / "run" / "node-3").mkdir()
    made(tmp_path / "run" / "node-old")  # a copy that somebody made
    assert [folder.name for folder in node_folders(tmp_path / "run")] == ["node-1", "node-2", "node-10"]
    assert node_folders(tmp_path / "run" / "node-2") == [tmp_path / "run" / "node-2"]


def test_a_swarm_that_never_began_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    describe(tmp_path / "run", "swarm")
    with pytest.raises(RunError, match="holds no nodes; the run was stopped before it began"):
        node_folders(tmp_path / "run")


def test_folders_of_the_first_format_are_brought_to_this_one(tmp_path: Path) -> None:
    old = b'{"format": 1, "kind": "%s", "release": "0.1"}'
    path = tmp_path / "run"
    first, _ = (made(path / f"node-{number}") for number in (1, 2))
    (first / "run.json").write_bytes(old % b"node")
    (path / "run.json").write_bytes(old % b"swarm")
    assert [folder.name for folder in node_folders(path)] == ["node-1", "node-2"]  # looking changes nothing
    assert not (path / "config.toml").exists()
    migrate(path)
    RunFolder.open(first).close()
    assert RunFolder(path).config() == SETTINGS
    assert RunFolder(path).charter() == CHARTER
    assert [read_description(folder)["format"] for folder in (path, first)] == [FORMAT] * 2
    before = (path / "run.json").stat().st_mtime_ns
    migrate(path)
    assert (path / "run.json").stat().st_mtime_ns == before


def test_a_swarm_is_no_node(tmp_path: Path) -> None:
    made(tmp_path / "run" / "node-1")
    describe(tmp_path / "run", "swarm")
    with pytest.raises(RunError, match=r"is the folder of a swarm; continue it with: waggle swarm --resume"):
        RunFolder.open(tmp_path / "run")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*file.*: (Not a directory|File exists)"):
        RunFolder.create(tmp_path / "file", SETTINGS, CHARTER)
    assert os.listdir(tmp_path) == ["file"]
