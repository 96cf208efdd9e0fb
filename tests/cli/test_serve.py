"""The commands that listen, as processes: they say where, answer there, and end in order."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import made_run


@contextmanager
def listening(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command and the address that it says."""
    command = [sys.executable, "-m", "waggle", *arguments]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "http://127.0.0.1:" in line, line
            yield process, "http://127.0.0.1:" + line.partition("http://127.0.0.1:")[2].split("/")[0].split(";")[0]
        finally:
            process.kill()


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, None])
def test_the_page_is_shown_until_somebody_ends_it(tmp_path: Path, how: signal.Signals | None) -> None:
    made_run(tmp_path / "run")
    tied = () if how else ("--tied",)
    with listening("dash", str(tmp_path / "run"), "--port", "0", *tied) as (process, url):
        assert "<title>Waggle</title>" in got(url)
        assert 'waggle_up{node="run",run="run"} 0.0' in got(f"{url}/metrics")
        if how:
            process.send_signal(how)
        else:
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.slow
def test_a_model_is_served_until_somebody_ends_it() -> None:
    with listening("serve", "tiny", "--port", "0", "--set", "model.threads=1") as (process, url):
        assert json.loads(got(f"{url}/health"))["model"] == "tiny"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
