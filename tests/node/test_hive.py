"""Processes that play nodes: started, started again when they die, given up when they keep dying, ended with us."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from waggle.node import hive
from waggle.node.hive import Hive, addresses
from waggle.node.runfolder import RunFolder

LIVES = "import os; print('up', flush=True); os.read(0, 1)"
"""A node that lives until its input ends."""


def command(code: str) -> Callable[[Path], list[str]]:
    """A node of a few lines; `{path}` is its folder."""
    return lambda path: [sys.executable, "-c", code.replace("{path}", str(path))]


def folders(path: Path, num: int = 2) -> list[RunFolder]:
    made = [path / f"node-{number + 1}" for number in range(num)]
    for place in made:
        place.mkdir()
    return [RunFolder(place) for place in made]


def until(nodes: Hive, done: Callable[[], bool]) -> None:
    """Look after the nodes until something is so; the test's own time limit bounds it."""
    while not done():
        nodes.look()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hive, "MAX_WAIT_S", 0.0)


def test_nodes_run_until_they_are_asked_to_end(tmp_path: Path) -> None:
    said: list[str] = []
    with Hive(folders(tmp_path), said.append, command(LIVES)) as nodes:
        assert nodes.look()
        until(nodes, lambda: all((tmp_path / f"node-{n}" / "log").read_text() == "up\n" for n in (1, 2)))
        nodes.stop()
        while nodes.look():
            pass
        assert all(member.ended for member in nodes.members)
    assert [line for line in said if "no network of their own" not in line] == []


def test_a_killed_node_is_started_again_and_the_reason_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    with Hive(folders(tmp_path, 1), said.append, command(LIVES)) as nodes:
        (member,) = nodes.members
        until(nodes, lambda: member.process is not None)
        assert member.process is not None
        first = member.process.pid
        os.kill(first, signal.SIGKILL)
        until(nodes, lambda: member.process is not None and member.process.pid != first)
    assert said[-1] == "node-1 died (killed by signal 9); it is started again in 0 s"


def test_who_keeps_dying_at_once_is_given_up_with_his_last_words_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    code = f"import sys\nif 'node-2' in '{{path}}': sys.exit('waggle: the disk is gone')\n{LIVES}"
    with Hive(folders(tmp_path), said.append, command(code)) as nodes:
        until(nodes, lambda: nodes.members[1].ended)
        assert nodes.members[0].process is not None
        assert nodes.look()
        assert sum("node-2 died (the disk is gone)" in line for line in said) == hive.MAX_SHORT - 1
        assert said[-1].endswith("the others go on. It said: the disk is gone")
        nodes.members[0].process.kill()
        nodes.stop()
        while nodes.look():
            pass


def test_who_plays_between_two_deaths_is_not_given_up(tmp_path: Path) -> None:
    code = "open('{path}/metrics.jsonl', 'a').write('x'); raise SystemExit(1)"
    said: list[str] = []
    with Hive(folders(tmp_path, 1), said.append, command(code)) as nodes:
        until(nodes, lambda: (tmp_path / "node-1" / "metrics.jsonl").exists() and len(said) > 2 * hive.MAX_SHORT)
        assert not nodes.members[0].given_up


def test_a_folder_that_is_held_is_waited_for(tmp_path: Path) -> None:
    (folder,) = folders(tmp_path, 1)
    holder = RunFolder(folder.path)
    holder.lock()
    with Hive([folder], lambda text: None, command(LIVES)) as nodes:
        assert nodes.look()
        assert nodes.members[0].process is None
        holder.close()
        until(nodes, lambda: nodes.members[0].process is not None)


def test_nobody_is_left_behind_whatever_happens(tmp_path: Path) -> None:
    pids: list[int] = []
    nodes = Hive(folders(tmp_path), lambda text: None, command(LIVES))
    with pytest.raises(KeyError), nodes:  # noqa: PT012
        nodes.look()
        pids = [member.process.pid for member in nodes.members if member.process]
        pids += [nodes.holder] if nodes.holder else []
        raise KeyError
    assert len(pids) >= 2
    assert not any(alive(pid) for pid in pids)


def test_nodes_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """Not even a command that cannot clean up leaves nodes: their input ends with it."""
    places = folders(tmp_path)
    code = f"""
import sys, time
from pathlib import Path
from waggle.node.hive import Hive
from waggle.node.runfolder import RunFolder
nodes = Hive([RunFolder(Path(p)) for p in sys.argv[1:]], print, lambda path: [sys.executable, "-c", {LIVES!r}])
nodes.__enter__()
nodes.look()
print(*(member.process.pid for member in nodes.members), flush=True)
time.sleep(100)
"""
    paths = [str(folder.path) for folder in places]
    with subprocess.Popen([sys.executable, "-c", code, *paths], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        line = ""
        while "no network" in line or not line:
            line = owner.stdout.readline()
        pids = [int(word) for word in line.split()]
        owner.kill()
    while any(alive(pid) for pid in pids):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")
def test_all_nodes_share_one_network_that_is_not_this_one(tmp_path: Path) -> None:
    code = "import os; print(os.readlink('/proc/self/ns/net'), flush=True); os.read(0, 1)"
    said: list[str] = []
    with Hive(folders(tmp_path), said.append, command(code)) as nodes:
        if said:
            pytest.skip(said[0])
        logs = [member.folder.log_file for member in nodes.members]
        until(nodes, lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
        networks = {log.read_text().strip() for log in logs}
    assert len(networks) == 1
    assert os.readlink("/proc/self/ns/net") not in networks


def test_each_node_has_a_port_of_its_own_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(hive, "FIRST_PORT", port)
        found = addresses(3)
    ports = [int(first.rpartition(":")[2]) for first, _ in found]
    assert ports == sorted({*ports})
    assert ports[0] > port
    assert found[0] == (f"127.0.0.1:{ports[0]}", f"[::1]:{ports[0]}")
