"""What `new`, `key` and `tasks` make and show."""

import re
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import OWNER, Waggle, task_file
from waggle.core.keys import Key, peer_name
from waggle.core.sealing import charter_digest
from waggle.swarm.charter import is_member, read_ticket


def test_keys(waggle: Waggle, here: Path) -> None:
    made = waggle("key", "new")
    file = Path.home() / ".waggle" / "key"
    assert made.code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    kept = Key.load(file)
    shown = waggle("key", "show")
    assert shown.out == made.out == f"{file}: {peer_name(kept.id)}\n{kept.id.hex()}\n"
    assert file.read_text().strip() not in shown.out
    before = file.read_bytes()
    assert waggle("key", "new").code == 6
    assert file.read_bytes() == before


@pytest.mark.slow
def test_founding_a_swarm(waggle: Waggle, here: Path) -> None:
    OWNER.save(here / "key")
    member = Key.from_seed(b"m" * 32).id
    options = ("--set", "tasks.set=short", "--key", "key", "--member", member.hex())
    done = waggle("new", "bees", *options, "--out", "ticket", "--days", "3")
    assert done.code == 0
    ticket = read_ticket((here / "ticket").read_text())
    charter = ticket.charter
    assert ticket.expires_ms == charter.created_ms + 3 * 24 * 3600 * 1000
    assert (charter.name, charter.founder) == ("bees", OWNER.id)
    assert charter.members == tuple(sorted((OWNER.id, member)))
    assert not is_member(charter, b"x" * 32)
    for told in (charter_digest(charter).hex(), peer_name(OWNER.id), charter.licence, "2 members", "chain_sum"):
        assert told in done.out
    assert sorted(path.name for path in here.iterdir()) == ["key", "ticket"]


@pytest.mark.slow
def test_a_swarm_on_a_task_file(waggle: Waggle, here: Path) -> None:
    task_file(here / "asked.jsonl")
    done = waggle("new", "bees", "-s", "tasks.set=none", "-s", "tasks.file=asked.jsonl", "-s", "tasks.grader=regex")
    assert done.code == 0
    assert "waggle join TICKET --set tasks.file=COPY" in done.out
    ticket = re.search(r"waggle1:\S+", done.out)
    assert ticket is not None
    (family,) = read_ticket(ticket[0]).charter.families
    assert (family.label, family.source) == ("asked", "file")
    assert [path.name for path in here.iterdir()] == ["asked.jsonl"]
    assert Key.load(Path.home() / ".waggle" / "key").id == read_ticket(ticket[0]).charter.founder


@pytest.mark.slow
def test_tasks_are_listed(waggle: Waggle, here: Path) -> None:
    sets = waggle("tasks", "list")
    assert [line.split()[0] for line in sets.out.splitlines()] == ["starter", "short", "paper", "all"]
    paper = waggle("tasks", "list", "paper")
    assert len(paper.out.splitlines()) == 9
    assert "propositional_logic          not usable: it has no single true answer" in paper.out
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_tasks_are_shown(waggle: Waggle, here: Path) -> None:
    shown = waggle("tasks", "show", "chain_sum", "--count", "2")
    assert shown.code == 0
    assert shown.out.count("assistant: ") == 3
    assert shown.out.count("user: ") == 3 + 2
    assert "--- 2: true answer '" in shown.out
    assert waggle("tasks", "show", "chain_sum", "--count", "2").out == shown.out
    assert waggle("tasks", "show", "chain_sum", "--count", "2", "--seed", "1").out != shown.out
    task_file(here / "asked.jsonl")
    assert "letter " in waggle("tasks", "show", "asked.jsonl", "--grader", "regex").out
    assert [path.name for path in here.iterdir()] == ["asked.jsonl"]


@pytest.mark.slow
def test_tasks_are_checked(waggle: Waggle, here: Path) -> None:
    task_file(here / "asked.jsonl")
    done = waggle("tasks", "check", "chain_sum", "rush_hour", "--count", "3")
    assert done.code == 3
    fit, unfit = done.out.splitlines()
    assert fit.startswith("chain_sum")
    assert "fit; 1000 or more distinct questions" in fit
    assert "truth:" in unfit
    assert done.sentence == "1 of 2 cannot be learned from: rush_hour; see above for why"
    loose = waggle("tasks", "check", "asked.jsonl", "--grader", "regex", "--count", "3")
    assert loose.code == 3
    assert "garbage:" in loose.out
    lines = (f'{{"question": "{number} + 1 =", "answer": {number + 1}}}' for number in range(200))
    (here / "sums.jsonl").write_text("\n".join(lines))
    strict = waggle("tasks", "check", "sums.jsonl", "--grader", "number", "--count", "3")
    assert (strict.code, strict.out.split(maxsplit=1)) == (0, ["sums", "fit; 200 distinct questions\n"])
    assert sorted(path.name for path in here.iterdir()) == ["asked.jsonl", "sums.jsonl"]
