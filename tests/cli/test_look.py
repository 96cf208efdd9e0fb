"""What `status`, `doctor` and `chat` say, and that they cannot be brought to a fall."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import Waggle, made_run
from waggle.cli import look, plain
from waggle.core.codec import encode
from waggle.core.errors import ModelError
from waggle.core.types import Sampling, Task
from waggle.node import chatting, doctor
from waggle.node.state import Snapshot, State

RUNNING, ENDED, STOPPED = "running", "ended", "stopped"


def with_journal(run: Path, data: bytes) -> None:
    (run / "journal").mkdir()
    (run / "journal" / "round_000003.log").write_bytes(data)


@pytest.mark.parametrize(
    ("rounds", "journal", "locked", "state", "code"),
    [
        (3, b"", False, ENDED, 0),
        (3, b"a round since the checkpoint", False, STOPPED, 1),
        (3, b"a round since the checkpoint", True, RUNNING, 0),
        (0, b"", False, STOPPED, 1),
        (0, b"", True, RUNNING, 0),
    ],
)
def test_status(waggle: Waggle, here: Path, rounds: int, journal: bytes, locked: bool, state: str, code: int) -> None:
    run = made_run(here / "run", rounds)
    with_journal(here / "run", journal)
    if locked:
        run.lock()
    done, as_json = waggle("status", "run"), waggle("status", "run", "--json")
    run.close()
    assert (done.code, as_json.code) == (code, code)
    assert f" {state} " in done.out
    assert ("--resume run" in done.out) == (state == STOPPED)
    (node,) = json.loads(as_json.out)["nodes"]
    assert (node["state"], node["round"]) == (state, rounds)
    assert node["heldout"] == ([[2, 0.2]] if rounds else [])
    assert node["reward"] == (0.25 if rounds else None)


def test_status_takes_the_newest_run(waggle: Waggle, here: Path) -> None:
    for number, name in enumerate(("old", "new", "older")):
        made_run(here / "runs" / name)
        os.utime(here / "runs" / name / "run.json", (number % 2, number % 2))
    (here / "runs" / "notes").mkdir()
    assert waggle("status").out.startswith("run runs/new\n")


def test_status_passes_over_damaged_lines(waggle: Waggle, here: Path) -> None:
    run = made_run(here / "run")
    with open(run.metrics_file, "ab") as metrics:
        metrics.write(b'{"round": "x"}\n{"round": 9}\n[1]\n\xff\xfe\n{"round": 9, "reward": {}, "refused": 3}\n{"ro')
    run.events_file.write_bytes(b'{"at_s": "yesterday"}\n{"at_s": 5}\n\x00\n')
    done = waggle("status", "run", "--json")
    assert json.loads(done.out)["nodes"][0]["round"] == 3
    assert json.loads(done.out)["nodes"][0]["last_s"] == 5


def test_brackets_in_a_path_are_no_markup(waggle: Waggle, here: Path) -> None:
    made_run(here / "[bold]run[/]")
    assert "[bold]run[/]" in waggle("status", "[bold]run[/]").out


# doctor ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in ("torch", "graders"):
        monkeypatch.setattr(doctor, slow, lambda: doctor.Finding("not tried"))


def faults(out: str) -> list[str]:
    return [line.removeprefix("FAULT ") for line in out.splitlines() if line.startswith("FAULT")]


@pytest.mark.slow
def test_doctor_finds_nothing_here(waggle: Waggle, here: Path) -> None:
    done = waggle("doctor")
    assert faults(done.out) == []
    assert done.out.endswith("no faults found\n")
    assert done.code == 0
    assert list(here.iterdir()) == []


def test_doctor_counts_faults(waggle: Waggle, here: Path, quick_doctor: None) -> None:
    key = Path(os.environ["HOME"]) / ".waggle" / "key"
    assert waggle("key", "new").code == 0
    key.chmod(0o644)
    done = waggle("doctor")
    assert done.code == 1
    assert faults(done.out) == [f"the key {key} can be read by other users (mode 0644); run `chmod 600 {key}`"]
    assert done.out.endswith("1 fault found\n")


def test_a_missing_package_is_named(waggle: Waggle, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(here / "run")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = waggle("status", "run")
    assert (done.code, done.sentence) == (
        1,
        "the package rich is not installed; `waggle doctor` says what else is missing",
    )


def test_doctor_looks_at_versions() -> None:
    asked = ["nothing-of-this-name>=1", "msgspec>=999.1", "msgspec>=0.1", "rich", "absent>=1; extra == 'dev'"]
    assert [(f.what, f.cure) for f in doctor.dependencies(asked)] == [
        ("the package nothing-of-this-name is not installed", "run `pip install 'nothing-of-this-name>=1'`"),
        (
            f"msgspec {doctor.importlib.metadata.version('msgspec')} is too old",
            "run `pip install --upgrade 'msgspec>=999.1'`",
        ),
    ]
    assert [bool(doctor.python(version).cure) for version in ((3, 10), (3, 11), (3, 13), (3, 14))] == [
        True,
        False,
        False,
        True,
    ]


def test_doctor_measures_room() -> None:
    assert doctor.disk(10**9).cure
    assert not doctor.disk(10**10).cure
    assert doctor.memory(10**9).cure
    assert not doctor.memory(10**10).cure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise ImportError('no such symbol')", "torch does not work: ImportError: no such symbol"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            "torch does not work: the process ended with code -4",
        ),
        ("import time; time.sleep(60)", "did not answer"),
    ],
)
def test_doctor_outlives_a_broken_torch(monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    monkeypatch.setattr(doctor, "_TRY", script)
    monkeypatch.setattr(doctor, "_TRY_S", 0.5 if "sleep" in script else 60.0)
    finding = doctor.torch()
    assert said in finding.what
    assert finding.cure


def safetensors(file: Path, size: int) -> None:
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}}
    ).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.mark.parametrize(("size", "whole"), [(16, True), (15, False), (17, False), (0, False)])
def test_doctor_sees_an_incomplete_checkpoint(tmp_path: Path, size: int, whole: bool) -> None:
    run = made_run(tmp_path / "run")
    checkpoint = run.checkpoints / "round_000003"
    checkpoint.mkdir(parents=True)
    snapshot = Snapshot(State(lineage=b"l" * 32, round=3), b"b" * 32, b"", b"", ())
    (checkpoint / "state.bin").write_bytes(encode(snapshot))
    safetensors(checkpoint / "optimiser.safetensors", 16)
    safetensors(checkpoint / "weights.safetensors", size)
    (finding,) = doctor.run_folder(run.path)
    assert (not finding.cure) == whole
    assert ("from round 3" if whole else "weights.safetensors is missing or incomplete") in finding.what
    (checkpoint / "weights.safetensors").write_bytes(b"\xff" * 40)
    (finding,) = doctor.run_folder(run.path)
    assert finding.cure
    shutil.rmtree(run.checkpoints)
    (finding,) = doctor.run_folder(run.path)
    assert "lost its checkpoints" in finding.what


# chat ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_chat_answers_whatever_is_typed(waggle: Waggle, here: Path) -> None:
    typed = b"hello\n\n   \nbad \xff\xfe bytes \x00\x1b[31m\r\n" + "🐝\n".encode() + b"/quit\nnever read\n"
    done = waggle("chat", "tiny", "--max-tokens", "4", typed=typed)
    assert done.code == 0
    assert done.err.count("\n") == 1, done.err
    assert done.out.count(" ...\n") + done.out.count("\n") >= 3
    assert "\x1b" not in done.out
    assert waggle("chat", "tiny", "--max-tokens", "4", typed=b"").code == 0


@pytest.mark.slow
def test_chat_once(waggle: Waggle, here: Path) -> None:
    options = ("chat", "tiny", "--max-tokens", "6", "--message")
    first, same = waggle(*options, "hello \udcff"), waggle(*options, "hello \udcff")
    other = waggle(*options, "hello \udcff", "--seed", "1")
    assert first.code == 0
    assert first.out == same.out != other.out
    long = waggle(*options, "word " * 4000)
    assert long.code == 4
    assert "shorten it" in long.sentence


@pytest.mark.slow
def test_a_conversation_forgets_its_beginning() -> None:
    from waggle.policy.load import load

    policy = load("tiny")
    policy.model.config.max_position_embeddings = 256
    conversation = chatting.Conversation(policy, max_tokens=8)
    forgotten = [conversation.say(f"message {number} " + "x" * 40).forgotten for number in range(6)]
    assert forgotten[0] == 0
    assert sum(forgotten) >= 4
    assert len(policy.encode_prompt(conversation.messages[:-1])) <= 256 - 8
    before = list(conversation.messages)
    with pytest.raises(ModelError, match="shorten it"):
        conversation.say("x" * 300)
    assert conversation.messages == before


@pytest.mark.slow
def test_chat_lives_on_when_an_answer_is_stopped(waggle: Waggle, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = chatting.generate

    def stopped(policy: object, tasks: Sequence[Task], num: int, sampling: Sampling) -> object:
        if tasks[0].prompt[-1].content == "stop":
            signal.raise_signal(signal.SIGINT)
        return real(policy, tasks, num, sampling)  # type: ignore[arg-type]

    monkeypatch.setattr(chatting, "generate", stopped)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        done = waggle("chat", "tiny", "--max-tokens", "3", typed=b"stop\nhello\n")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 0
    assert "(stopped" in done.err
    assert done.out.strip()


@pytest.mark.slow
def test_ctrl_c_and_ctrl_d_at_the_prompt_end_it(waggle: Waggle, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (KeyboardInterrupt, EOFError):
        answers: Iterator[str] = iter(["hello"])

        def typed(prompt: str, answers: Iterator[str] = answers, end: type[BaseException] = end) -> str:
            for answer in answers:
                return answer
            raise end

        monkeypatch.setattr("builtins.input", typed)
        monkeypatch.setattr(look, "_at_a_terminal", lambda: True)
        done = waggle("chat", "tiny", "--max-tokens", "3")
        assert done.code == 0
        assert "Traceback" not in done.err


def test_what_a_model_writes_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[31mb\x9bc\x07\r\n\tü🐝") == "a?[31mb?c??\n\tü🐝"
