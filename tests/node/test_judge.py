"""The judge as a service: over HTTP, after a restart, on a full disk, and checked by somebody else offline."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests.node.parts import keys
from tests.node.test_judging import CHARTER, FAMILIES, ID, MODEL
from waggle.cli import app, register
from waggle.core.clock import FakeClock
from waggle.core.codec import decode, encode
from waggle.core.errors import ConfigError, NetworkError, RunError
from waggle.core.types import Charter, Ticket
from waggle.node import judge as service
from waggle.node.judge import Court, Judge, answerer, charter_of, read_log, rules_of
from waggle.node.judging import ANSWER_MS, Challenge, Judged, ask_of, reply_of
from waggle.policy.load import load
from waggle.swarm.charter import ticket_text
from waggle.tasks.grade import Graders

JUDGE, ALICE, EVE = keys(3)


class Sitting:
    """A judge and a client of it."""

    def __init__(self, log: Path) -> None:
        self.log, self.clock = log, FakeClock()
        rules = rules_of(CHARTER, Graders(FAMILIES, workers=0))
        self.judge = Judge(JUDGE, CHARTER, rules, log, self.clock)
        self.client = TestClient(self.judge.app())

    def ask(self, number: int, who: Any = ALICE) -> Challenge:
        answer = self.client.post("/ask", content=encode(ask_of(who, ID, MODEL, number, 0)))
        assert answer.status_code == 200, answer.text
        return decode(Challenge, answer.content)

    def reply(self, challenge: Challenge, text: str, who: Any = ALICE) -> Judged:
        answer = self.client.post("/reply", content=encode(reply_of(who, challenge, text)))
        assert answer.status_code == 200, answer.text
        return decode(Judged, answer.content)


@pytest.fixture
def sitting(tmp_path: Path) -> Sitting:
    return Sitting(tmp_path / "judged.jsonl")


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    file = tmp_path / "ticket"
    file.write_text(ticket_text(Ticket(CHARTER, ())))
    return file


def checked(ticket: Path, log: Path) -> tuple[int, str]:
    register()
    result = CliRunner().invoke(app, ["judge", "check", str(ticket), str(log)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout + result.stderr


def test_a_question_is_answered_published_and_checked_by_a_third_party(sitting: Sitting, ticket: Path) -> None:
    for number in range(3):
        sitting.reply(sitting.ask(number), "7")
    sitting.ask(9, EVE)
    sitting.clock.advance(ANSWER_MS / 1000 + 1)
    board = sitting.client.get("/leaderboard").json()
    assert sorted((place["asked"], place["answered"]) for place in board["places"]) == [(1, 0), (3, 3)]
    assert decode(Charter, sitting.client.get("/charter").content) == CHARTER
    copy = sitting.log.with_name("copy.jsonl")
    copy.write_bytes(sitting.client.get("/log").content)
    code, text = checked(ticket, copy)
    assert code == 0
    assert "0 of 4 judgements do not hold" in text


def test_a_log_that_somebody_changed_does_not_hold(sitting: Sitting, ticket: Path) -> None:
    one, two = (sitting.reply(sitting.ask(number), "7") for number in (1, 2))
    lines = sitting.log.read_text().splitlines()
    sitting.log.write_text("\n".join([*lines, lines[0]]) + "\n")
    code, text = checked(ticket, sitting.log)
    assert code == 1
    assert "line 3: double" in text
    assert "1 of 3 judgements do not hold" in text
    assert one != two
    sitting.log.write_text(lines[0].replace('"record":"', '"record":"AAAA') + "\n")
    code, text = checked(ticket, sitting.log)
    assert code != 0


def test_refusals_have_a_reason_and_are_counted(sitting: Sitting) -> None:
    challenge = sitting.ask(1)
    for body, status, reason in (
        (encode(reply_of(EVE, challenge, "1")), 409, "signature"),
        (b"nonsense", 400, "version"),
        (b"x" * (1 << 19), 413, "too-large"),
    ):
        answer = sitting.client.post("/reply", content=body)
        told = answer.json()
        assert (answer.status_code, told.get("reason", "too-large")) == (status, reason)
    sitting.reply(challenge, "1")
    answer = sitting.client.post("/reply", content=encode(reply_of(ALICE, challenge, "1")))
    assert (answer.status_code, answer.json()["reason"]) == (409, "already-answered")
    assert sitting.client.get("/leaderboard").json()["refused"] == {"signature": 1, "already-answered": 1}


def test_after_a_restart_nothing_counts_twice(sitting: Sitting) -> None:
    challenge = sitting.ask(1)
    sitting.reply(challenge, "1")
    with open(sitting.log, "a") as log:
        log.write('{"torn')
    again = Sitting(sitting.log)
    assert again.client.get("/leaderboard").json()["places"] == sitting.client.get("/leaderboard").json()["places"]
    answer = again.client.post("/reply", content=encode(reply_of(ALICE, challenge, "1")))
    assert answer.json()["reason"] == "already-answered"
    answer = again.client.post("/ask", content=encode(ask_of(ALICE, ID, MODEL, 1, 0)))
    assert answer.json()["reason"] == "asked-before"
    again.reply(again.ask(2), "1")
    assert len(list(read_log(sitting.log))) == 2


def test_what_is_not_on_disk_is_not_published(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = sitting.ask(1)

    def full(*_: Any) -> None:
        raise RunError("no space left")

    monkeypatch.setattr(service, "append_line", full)
    answer = sitting.client.post("/reply", content=encode(reply_of(ALICE, challenge, "1")))
    assert answer.status_code == 503
    assert sitting.client.get("/leaderboard").json()["places"] == []


def through(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Lets a peer's requests reach the judge without a network."""

    def urlopen(request: Any, timeout: float) -> Any:
        path = request.full_url.removeprefix("http://judge")
        answer = sitting.client.request("POST" if request.data else "GET", path, content=request.data)
        return io.BytesIO(answer.content)

    monkeypatch.setattr(service.urllib.request, "urlopen", urlopen)
    return urlopen


def test_a_model_answers_as_a_peer(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    through(sitting, monkeypatch)
    policy = load("tiny")
    court = Court("http://judge/", ALICE)
    one = court.try_(policy.content_digest(), answerer(policy, 1.0), 5, 3)
    assert (one.challenge.ask.peer, one.challenge.ask.round) == (ALICE.id, 3)
    assert one.reply is not None
    assert answerer(policy, 1.0)(one.challenge) == one.reply.text


def test_a_judge_that_is_not_there_or_none_is_one_sentence(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match="no judge answers at"):
        Court("http://127.0.0.1:9", ALICE)
    through(sitting, monkeypatch)
    court = Court("http://judge", ALICE)
    honest = sitting.ask(1, EVE)
    monkeypatch.setattr(court, "_noun", lambda *_: honest)
    with pytest.raises(NetworkError, match="that it did not sign for us"):
        court.try_(MODEL, lambda challenge: "", 2)
    with pytest.raises(ConfigError, match="is no address of a judge"):
        service.require_http("judge.example")


def test_the_swarm_is_named_by_ticket_or_file(ticket: Path) -> None:
    assert charter_of(str(ticket)) == charter_of(ticket.read_text()) == CHARTER
    with pytest.raises(ConfigError):
        charter_of("nothing")


def test_many_at_once_wait_their_turn(sitting: Sitting) -> None:
    async def story() -> list[Challenge]:
        asks = [encode(ask_of(key, ID, MODEL, 1, 0)) for key in keys(6)]
        return await asyncio.gather(*(sitting.judge.ask(ask) for ask in asks))

    assert len({one.sealed for one in asyncio.run(story())}) == 6
