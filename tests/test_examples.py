import ast
import json
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples/loop.py"


def test_the_whole_method_is_short_and_uses_four_packages() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 250
    imported = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.split(".")[1] for name in imported if name.startswith("waggle.")}
    assert packages == {"core", "tasks", "policy", "rl"}


@pytest.mark.slow
def test_two_tiny_nodes_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "letters.jsonl"
    lines = [{"question": f"Say something with a small letter, {i}.", "answer": ".*[a-m].*"} for i in range(800)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = f"--model tiny --file {file} --grader regex --tokens 4 --rounds 5 --rate 0.003 --held-out 20 --threads 1"
    runpy.run_path(str(EXAMPLE))["main"](command.split())
    *rounds, first, second = capsys.readouterr().out.splitlines()
    assert len(rounds) == 10
    assert "offered" in rounds[0]
    assert "(0 foreign)" in rounds[0]
    assert "(0 foreign)" not in rounds[1]
    for line in (first, second):
        before, after = (float(part.split()[0]) for part in line.partition(": ")[2].split(", "))
        assert after > before + 0.15, line
