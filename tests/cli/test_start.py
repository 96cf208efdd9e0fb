"""The command starts quickly: what takes long to import stays out until it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import made_run

HEAVY = ("torch", "transformers", "peft", "reasoning_gym", "sympy", "safetensors", "gguf")
_SCRIPT = """
import sys
sys.argv = ["waggle", *sys.argv[1:]]
import waggle
if sys.argv[1:]:
    from waggle.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
print("loaded:", *sorted(set(sys.modules) & {heavy}), file=sys.stderr)
"""


def loaded(folder: Path, *arguments: str) -> tuple[str, str]:
    """Heavy modules that a command imported, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.replace("{heavy}", repr(set(HEAVY))), *arguments],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.partition("loaded:")[2].strip(), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ((), ""),
        (("--help",), "Usage: waggle"),
        (("swarm", "--help"), "Usage: waggle swarm"),
        (("status", "run"), "sharing with 3 peers"),
        (("status", "run", "--json"), '"state": "ended"'),
        (("config",), "[model]"),
        (("key", "new"), ".waggle/key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_quick_commands_import_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...], printed: str) -> None:
    made_run(tmp_path / "run")
    heavy, out = loaded(tmp_path, *arguments)
    assert heavy == ""
    assert printed in out


@pytest.mark.slow
def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waggle", "config", "--set", "round.local=0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("waggle: round.local")
    assert "Traceback" not in done.stderr
