"""The files for services and containers say commands that exist, with options that exist."""

import importlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from waggle.cli import app, register

DEPLOY = Path(__file__).parent.parent / "deploy"


def commands() -> Iterator[list[str]]:
    """Arguments of every waggle command in the files."""
    yaml: Any = importlib.import_module("yaml")
    for service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values():
        yield service["command"]
    unit = (DEPLOY / "waggle.service").read_text().splitlines()
    (start,) = [line.removeprefix("ExecStart=") for line in unit if line.startswith("ExecStart=")]
    yield [word for word in shlex.split(start)[1:] if not word.startswith("$")]
    container = (DEPLOY / "Containerfile").read_text().splitlines()
    for line in container:
        found = yaml.safe_load(line[line.index("[") :]) if " [" in line and "CMD" in line else None
        if found:
            yield found[1:] if found[0] == "waggle" else found


@pytest.mark.parametrize("arguments", list(commands()), ids=" ".join)
def test_commands_can_be_parsed(arguments: list[str]) -> None:
    register()
    group: Any = get_command(app)
    with group.make_context("waggle", list(arguments)) as context:
        name, command, rest = group.resolve_command(context, list(arguments))
        command.make_context(name, rest, parent=context)


def test_a_compose_file_of_four_nodes_that_wait_for_the_first() -> None:
    yaml: Any = importlib.import_module("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert sorted(services) == ["node-1", "node-2", "node-3", "node-4"]
    assert all("node-1" in services[name].get("depends_on", {"node-1": 0}) for name in services)
    folders = [services[name]["volumes"][0] for name in services]
    assert len(set(folders)) == 4


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here to check its unit")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "waggle.service").read_text().replace("/opt/waggle/bin/waggle", "/bin/true")
    (tmp_path / "waggle.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "waggle.service")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
