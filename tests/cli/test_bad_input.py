"""Whatever a user gives that cannot be used: one sentence, the exit code of its kind, and nothing left behind."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.conftest import OWNER, Waggle, charter, files_below, made_run, task_file
from waggle.core.keys import Key
from waggle.core.types import Ticket
from waggle.node.doctor import Finding
from waggle.swarm.charter import ticket_text
from waggle.tasks.files import family_from_file

TINY = ("--set", "model.name=tiny")


def refused(waggle: Waggle, here: Path, code: int, said: str, *arguments: str) -> None:
    """The command ends with this code and these words, and leaves everything as it was."""
    before = files_below(here)
    done = waggle(*arguments)
    assert done.code == code, done
    assert said in done.sentence
    assert len(done.sentence) < 400
    assert files_below(here) == before


SETTINGS = [
    (("--set", "round.lokal=3"), "no setting round.lokal"),
    (("--set", "rounds.local=3"), "no setting rounds"),
    (("--set", "round.local=six"), "round.local"),
    (("--set", "round.local=2.5"), "round.local"),
    (("--set", "round.local=0"), "round.local"),
    (("--set", "round.group_size=1"), "round.group_size"),
    (("--set", "round.temperature=nan"), "round.temperature"),
    (("--set", "round.local"), "section.field=value"),
    (("--set", "=3"), "section.field=value"),
    (("--set", "round=4"), "section.field=value"),
    (("--set", "a.b.c=4"), "section.field=value"),
    (("--set", "model.device=tpu"), "model.device"),
    (("--set", "tasks.share_file=true"), "no effect without tasks.file"),
    (("--set", "round.foreign=0", "--set", "share.sampler=top_reward"), "no effect"),
    (("--config", "missing.toml"), "missing.toml"),
    (("--config", "two\nlines.toml"), "two lines.toml"),
    (("--config", "."), "configuration ."),
    (("--config", "torn.toml"), "torn.toml is not valid TOML"),
    (("--config", "bytes.toml"), "bytes.toml is not valid TOML"),
    (("--config", "unknown.toml"), "no setting round.lokal (in unknown.toml"),
]


@pytest.mark.parametrize("command", ["config", "swarm", "join", "eval"])
@pytest.mark.parametrize(("options", "said"), SETTINGS, ids=lambda value: " ".join(value) if value else "")
def test_settings(waggle: Waggle, here: Path, command: str, options: tuple[str, ...], said: str) -> None:
    (here / "torn.toml").write_text("[round\nlocal = ")
    (here / "bytes.toml").write_bytes(b"[round]\nlocal = \xff")
    (here / "unknown.toml").write_text("[round]\nlokal = 3\n")
    model = ("tiny",) if command == "eval" else ()
    refused(waggle, here, 2, said, command, *model, *options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dance",), "No such command"),
        (("swarn",), "'swarm'"),
        (("swarm", "--node", "3"), "No such option"),
        (("swarm", "--nodes", "0"), "--nodes"),
        (("swarm", "--nodes", "many"), "--nodes"),
        (("eval",), "Missing argument"),
        (("chat", "tiny", "--temperature", "-1"), "--temperature"),
        (("tasks", "show", "chain_sum", "--count", "0"), "--count"),
    ],
)
def test_usage(waggle: Waggle, here: Path, arguments: tuple[str, ...], said: str) -> None:
    done = waggle(*arguments)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert list(here.iterdir()) == []


def ticket(*members: bytes) -> str:
    return ticket_text(Ticket(charter(members=members)))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda text: "hello", "is not a ticket"),
        (lambda text: "", "is not a ticket"),
        (lambda text: "waggle1:", "damaged"),
        (lambda text: text[:-9], "damaged"),
        (lambda text: text[:100] + ("A" if text[100] != "A" else "B") + text[101:], "damaged"),
        (lambda text: text + "!", "damaged"),
        (lambda text: text.replace("waggle1:", "waggle2:"), "is not a ticket"),
    ],
)
def test_tickets(waggle: Waggle, here: Path, made: Callable[[str], str], said: str) -> None:
    refused(waggle, here, 2, said, "join", made(ticket()), *TINY, "--key", "key")


def test_a_swarm_of_others(waggle: Waggle, here: Path) -> None:
    Key.from_seed(b"k" * 32).save(here / "key")
    refused(waggle, here, 6, "members only", "join", ticket(OWNER.id), *TINY, "--key", "key")


def test_a_swarm_with_a_task_file(waggle: Waggle, here: Path, tmp_path: Path) -> None:
    Key.from_seed(b"k" * 32).save(here / "key")
    family = family_from_file(task_file(tmp_path / "asked.jsonl"), "regex", folder=tmp_path / "kept")
    text = ticket_text(Ticket(charter(family)))
    refused(waggle, here, 3, "questions of this swarm come from a file", "join", text, *TINY, "--key", "key")
    task_file(here / "asked.jsonl")
    foreign = ticket_text(Ticket(charter(replace(family, grader="os:system"))))
    mine = ("--set", "tasks.file=asked.jsonl", "--set", "tasks.grader=regex")
    refused(waggle, here, 3, "a function of the founder's", "join", foreign, *TINY, *mine, "--key", "key")
    task_file(here / "other.jsonl", 300)
    other = ("--set", "tasks.file=other.jsonl", "--set", "tasks.grader=regex")
    refused(waggle, here, 3, "does not ask questions of other.jsonl", "join", text, *TINY, *other, "--key", "key")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["swarm", "join", "eval", "chat", "serve"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/nowhere/model", "/nowhere/model"),
        ("./missing", "./missing"),
        ("missing.gguf", "missing.gguf"),
        ("empty.gguf", "empty.gguf"),
        ("bare", "cannot load the model"),
        ("tiny:x", "tiny"),
        ("config.json", "config.json"),
    ],
)
def test_models(waggle: Waggle, here: Path, command: str, model: str, said: str) -> None:
    (here / "bare").mkdir()
    (here / "bare" / "config.json").write_text('{"model_type": "llama"}')
    (here / "config.json").write_text("{}")
    (here / "empty.gguf").write_bytes(b"")
    Key.from_seed(b"k" * 32).save(here / "key")
    named = (model,) if command in ("eval", "chat", "serve") else ("--set", f"model.name={model}")
    key = {"join": ("--key", "key"), "serve": ("--port", "0")}.get(command, ())
    refused(waggle, here, 4, said, command, *named, *key)


TASKS = [
    (("tasks.set=startr",), "startr"),
    (("tasks.set=none",), "nothing to learn from"),
    (("tasks.families=['chess']",), "chess"),
    (("tasks.set=none", "tasks.file=good.jsonl", "tasks.grader=regex", "eval.report=400"), "take fewer"),
    (("tasks.file=missing.jsonl",), "missing.jsonl"),
    (("tasks.file=.",), "task file ."),
    (("tasks.file=bad.jsonl",), "line 3"),
    (("tasks.file=few.jsonl",), "needed to hold some out"),
    (("tasks.file=good.jsonl", "tasks.grader=number"), "does not fit grader 'number'"),
    (("tasks.file=good.jsonl", "tasks.grader=guess"), "guess"),
    (("tasks.file=good.jsonl", "tasks.grader=no.such:thing"), "no.such:thing"),
]


FOUNDING = ("new", "bees", "--key", "key")
BY_COMMAND = [
    *(("swarm", ("swarm",), *case) for case in TASKS),
    *(("new", FOUNDING, *case) for case in TASKS if case[1] not in ("chess", "take fewer")),  # a node's own settings
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command", "settings", "said"), BY_COMMAND)
def test_tasks(
    waggle: Waggle, here: Path, name: str, command: tuple[str, ...], settings: tuple[str, ...], said: str
) -> None:
    task_file(here / "good.jsonl")
    (here / "few.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    lines = task_file(here / "bad.jsonl").read_text().splitlines()
    (here / "bad.jsonl").write_text("\n".join([*lines[:2], '{"question": 3}', *lines[3:]]))
    Key.from_seed(b"k" * 32).save(here / "key")
    sets = (f"--set={setting}" for setting in settings)
    refused(waggle, here, 3, said, *command, *TINY, *sets)


def damage(folder: Path, what: str) -> None:
    """A node's folder, spoilt in one way."""
    made_run(folder)
    description = json.loads((folder / "run.json").read_text())
    if what == "missing":
        (folder / "run.json").unlink()
    elif what == "version":
        (folder / "run.json").write_text(json.dumps({**description, "format": 99, "release": "9.9"}))
    elif what in ("run.json", "config.toml", "charter.bin"):
        (folder / what).write_bytes((folder / what).read_bytes()[:20] + b"\xff")
    elif what == "kind":
        (folder / "run.json").write_text(json.dumps({**description, "kind": "swarm"}))


DAMAGE = {
    "missing": "not a run folder",
    "version": "use the release that made it (9.9)",
    "run.json": "run.json cannot be read",
    "config.toml": "damaged",
    "charter.bin": "charter.bin is missing or damaged",
    "kind": "holds no nodes",
}


READERS = ("status", "swarm", "join", "eval", "chat", "serve", "replay", "report", "doctor")
UNREAD = {("charter.bin", name) for name in ("status", "chat", "serve", "replay", "report")}
UNREAD |= {("config.toml", "chat"), ("config.toml", "serve")}


@pytest.mark.parametrize(("what", "command"), [(w, c) for w in DAMAGE for c in READERS if (w, c) not in UNREAD])
def test_run_folders(waggle: Waggle, here: Path, monkeypatch: pytest.MonkeyPatch, command: str, what: str) -> None:
    damage(here / "run", what)
    arguments = (command, "--resume", "run") if command in ("swarm", "join") else (command, "run")
    if (what, command) == ("kind", "join"):
        refused(waggle, here, 5, "is the folder of a swarm", *arguments)
    elif command == "doctor":
        for slow in ("torch", "graders"):
            monkeypatch.setattr(f"waggle.node.doctor.{slow}", lambda: Finding("not tried"))
        doctor_names(waggle, DAMAGE[what])
    elif what == "missing" and command in ("eval", "chat", "serve"):
        refused(waggle, here, 4, "cannot load the model", *arguments)  # any folder may be a model
    else:
        refused(waggle, here, 5, DAMAGE[what], *arguments)


def doctor_names(waggle: Waggle, fault: str) -> None:
    done = waggle("doctor", "run")
    assert done.code == 1
    assert any(line.startswith("FAULT") and fault.split(" (")[0] in line for line in done.out.splitlines()), done.out


def test_a_run_that_is_in_use(waggle: Waggle, here: Path) -> None:
    folder = made_run(here / "run")
    folder.lock()
    refused(waggle, here, 5, "another process is using run", "swarm", "--resume", "run")
    assert waggle("status", "run").code == 0
    folder.close()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("swarm", "--run", "run"), 5, "already holds a run"),
        (("swarm", "--run", "full"), 5, "full is not empty"),
        (("swarm", "--run", "file"), 5, "file"),
        (("swarm", "--run", "file/run"), 5, "file/run"),
        (("swarm", "--run", "x" * 300), 5, "too long"),
        (("swarm", "--resume", "run"), 5, "state.bin is missing or damaged"),
        (("swarm", "--resume", "lost"), 5, "no checkpoint to resume from"),
        (("swarm", "--resume", "run", "--run", "other"), 2, "leave out --run"),
        (("swarm", "--resume", "run", "--config", "file"), 2, "leave out --config"),
        (("swarm", "--resume", "run", "--set", "round.local=2"), 2, "cannot change an existing run"),
        (("join", "--resume", "run", "waggle1:x"), 2, "leave out the ticket"),
        (("join", "--resume", "run", "--key", "file"), 2, "leave out --key"),
        (("status", "nowhere"), 5, "not a run folder"),
        (("status",), 5, "there is no run in"),
        (("chat", "run"), 4, "no node of run has exported a model"),
        (("eval", "run"), 4, "no node of run has exported a model"),
        (("chat", "run/checkpoints/round_000004"), 4, "is a checkpoint to resume from"),
        (("serve", "tiny", "--host", "0.0.0.0"), 2, "protect it with --token FILE"),
        (("serve", "tiny", "--token", "file"), 2, "holds no token"),
        (("serve", "tiny", "--host", "192.0.2.1", "--token", "file"), 2, "holds no token"),
        (("dash", "nowhere"), 5, "not a run folder"),
        (("dash",), 5, "there is no run in"),
        (("dash", "run", "--host", "0.0.0.0"), 2, "protect it with --token FILE"),
        (("join", "--into", "run", "--dash"), 2, "run `waggle dash` beside it"),
        (("swarm", "--resume", "run", "--dash"), 2, "`waggle dash run` shows one node"),
        (("judge", "serve", "nothing"), 2, "ticket"),
        (("judge", "ask", "judge.example", "tiny"), 6, "there is no key at"),
        (("judge", "check", "run", "missing.jsonl"), 5, "there is no log missing.jsonl"),
        (("answer",), 2, "name a swarm"),
        (("answer", "waggle1:x", "--into", "run"), 2, "name a swarm"),
        (("answer", "--resume", "run", "--key", "file"), 2, "leave out --key"),
        (("replay", "run"), 5, "has no record of what came in"),
        (("replay", "run", "--node", "node-2"), 2, "has no node 'node-2'; it has run"),
        (("replay", "run", "--alone", "--without", "x"), 2, "leave out --without"),
        (("new", ""), 2, "name"),
        (("new", "bees", "--member", "abc"), 2, "'abc' is not an id"),
        (("new", "bees", "--out", "file/ticket"), 5, "file/ticket"),
        (("tasks", "list", "best"), 3, "'best'"),
        (("tasks", "show", "chain_som"), 3, "chain_sum"),
        (("tasks", "show", "chain_sum", "--set-name", "best"), 3, "'best'"),
        (("tasks", "show", "paper"), 3, "is a set"),
        (("tasks", "show", "rush_hour"), 3, "rush_hour cannot be used"),
        (("tasks", "show", "missing.jsonl"), 3, "missing.jsonl"),
        (("tasks", "check", "chain_som"), 3, "chain_sum"),
        (("config", "--explain", "--dry-run"), 2, "choose one"),
        (("key", "show"), 6, "there is no key at"),
        (("key", "show", "--file", "open"), 6, "chmod 600 open"),
        (("key", "show", "--file", "file"), 6, "file does not hold a key"),
        (("key", "new", "--file", "file"), 6, "already holds a key"),
        (("key", "new", "--file", "file/key"), 5, "file"),
        (("key", "new", "--file", "x" * 300), 1, "too long"),
        (("join", "--key", "open"), 6, "chmod 600 open"),
        (("new", "bees", "--key", "open"), 6, "chmod 600 open"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_everything_else(waggle: Waggle, here: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    run = made_run(here / "run")
    for made in (run, made_run(here / "lost")):
        made.checkpoints.mkdir()
        made.journals.mkdir()
    (run.checkpoints / "round_000004").mkdir()
    (run.checkpoints / "round_000004" / "state.bin").write_bytes(b"")
    (here / "full").mkdir()
    (here / "full" / "notes.txt").write_text("mine")
    (here / "file").write_text("mine")
    os.chmod(here / "file", 0o600)
    (here / "open").write_text("00" * 32)
    os.chmod(here / "open", 0o644)
    refused(waggle, here, code, said, *arguments)
