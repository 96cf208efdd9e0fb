"""`waggle judge`: the service that asks, the peer that answers, and whoever checks the log; see `judging.py`.

GET  /charter      the swarm, canonical bytes         POST /ask     an Ask; a Challenge comes back
GET  /leaderboard  JSON                               POST /reply   a Reply; what it was worth comes back
GET  /log          all judgements, a line each

Anybody may come: every message is signed, and an answer is published with all that is needed to check it. A judgement
is on disk before anybody is told of it. After a restart the log is what is known; questions that were open are lost.
"""

import asyncio
import base64
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from waggle.core.clock import Clock
from waggle.core.codec import decode, decode_stored, digest, encode
from waggle.core.errors import ConfigError, DecodeError, NetworkError, RunError, TaskError
from waggle.core.events import cut_torn_line, json_line, read_lines
from waggle.core.files import append_line
from waggle.core.keys import Key, peer_name, verify
from waggle.core.rng import seed_for
from waggle.core.sealing import charter_digest
from waggle.core.types import Charter, Noun, Sampling, Task, TaskRef
from waggle.core.web import Guard, TooLarge
from waggle.node.evaluate import Grades
from waggle.node.judging import (
    Ask,
    Bench,
    Board,
    Challenge,
    Judged,
    Refused,
    Reply,
    Rules,
    ask_of,
    reply_of,
    signed_bytes,
)
from waggle.node.runfolder import RunFolder, node_folders
from waggle.policy.decoding import Prompt
from waggle.policy.decoding import decode as decode_prompt
from waggle.policy.policy import Policy
from waggle.swarm.charter import PREFIX, is_member, read_ticket
from waggle.tasks.stream import EPOCH, family_of
from waggle.tasks.taskset import Taskset

T = TypeVar("T", bound=Noun)
MAX_BYTES = 1 << 18
"""Of a message."""
_WAIT_S = 60.0
_NEVER = 1 << 62


def charter_of(where: str) -> Charter:
    """The swarm of a ticket, of a file that holds one, or of a run folder.

    Raises:
        ConfigError: it is neither.
    """
    path = Path(where)
    if where.startswith(PREFIX):
        return read_ticket(where, 0).charter
    if (path / "run.json").exists():
        return RunFolder(node_folders(path)[0]).charter()
    if path.is_file():
        where = path.read_text("utf-8", "replace")
    return read_ticket(where, 0).charter


def rules_of(charter: Charter, grader: Grades, files: Path | None = None) -> Rules:
    """What follows from a charter: which question a seed gives, and what an answer to it is worth.

    Args:
        files: the folder of task files, where it has some.
    """
    taskset = Taskset(charter, files)
    weights = tuple(family.weight for family in charter.families)

    def draw(seed: int) -> Task:
        family = charter.families[family_of(seed, 0, weights)]
        for index in range(EPOCH):
            task = taskset.regenerate(TaskRef(family.env, digest(family), seed, 0, index))
            if taskset.bucket(task) == "report":
                return task
        raise TaskError(f"{family.label} has no held-out question for this seed")

    def grade(task: Task, text: str) -> float | None:
        return grader.grade([(task, text)])[0].reward

    return Rules(charter_digest(charter), draw, grade, partial(is_member, charter))


def read_log(file: Path) -> Iterator[Judged]:
    """The judgements of a log, in order.

    Raises:
        RunError: a line that is none.
    """
    for number, line in enumerate(read_lines(file), 1):
        try:
            yield decode_stored(Judged, base64.b64decode(str(line["record"]), validate=True), MAX_BYTES)
        except (KeyError, ValueError, DecodeError) as error:
            raise RunError(f"{file}, line {number} holds no judgement ({error}); get the log again") from error


class Judge:
    """A bench, its log and its board.

    Args:
        log: where judgements are written; those that are there count.
    """

    def __init__(self, key: Key, charter: Charter, rules: Rules, log: Path, clock: Clock) -> None:
        self.bench, self.charter, self.board = Bench(key, rules), charter, Board()
        self._log, self._clock, self._turn = log, clock, asyncio.Lock()
        cut_torn_line(log)
        for one in read_log(log):
            self.board.add(one)
            self.bench.remember(one)

    async def ask(self, data: bytes) -> Challenge:
        """See `Bench.ask`."""
        ask = decode(Ask, data, MAX_BYTES)
        async with self._turn:
            await self._sweep()
            return await run_in_threadpool(self.bench.ask, ask, self._now_ms())

    async def reply(self, data: bytes) -> Judged:
        """See `Bench.reply`."""
        reply = decode(Reply, data, MAX_BYTES)
        async with self._turn:
            try:
                one = await run_in_threadpool(self.bench.reply, reply, self._now_ms())
            finally:
                await self._sweep()
            await run_in_threadpool(self._keep, one)
            return one

    async def places(self) -> dict[str, Any]:
        """The board, for JSON."""
        async with self._turn:
            await self._sweep()
        rows = [
            {
                "peer": peer_name(place.peer),
                "id": place.peer.hex(),
                "model": place.model.hex(),
                "asked": place.asked,
                "answered": place.answered,
                "rate": place.rate,
                "interval": list(place.interval),
            }
            for place in self.board.places()
        ]
        return {"charter": self.bench.rules.charter.hex(), "refused": dict(self.bench.refused), "places": rows}

    async def _sweep(self) -> None:
        for one in self.bench.overdue(self._now_ms()):
            await run_in_threadpool(self._keep, one)

    def _keep(self, one: Judged) -> None:
        ask = one.challenge.ask
        told = {"peer": peer_name(ask.peer), "round": ask.round, "reward": one.reward, "at_ms": one.judged_ms}
        line = json_line({**told, "record": base64.b64encode(encode(one)).decode()})
        append_line(self._log, line.encode(), _NEVER)
        self.board.add(one)

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    def app(self) -> Any:
        """The service as an ASGI application."""

        async def given(request: Request, take: Callable[[bytes], Any]) -> Response:
            noun = await take(await request.body())
            return Response(encode(noun), media_type="application/octet-stream")

        async def ask(request: Request) -> Response:
            return await given(request, self.ask)

        async def reply(request: Request) -> Response:
            return await given(request, self.reply)

        async def charter(request: Request) -> Response:
            return Response(encode(self.charter), media_type="application/octet-stream")

        async def board(request: Request) -> Response:
            return JSONResponse(await self.places())

        async def log(request: Request) -> Response:
            lines = self._log.read_bytes() if self._log.exists() else b""
            return Response(lines, media_type="application/x-ndjson")

        routes = [
            Route("/ask", ask, methods=["POST"]),
            Route("/reply", reply, methods=["POST"]),
            Route("/charter", charter),
            Route("/leaderboard", board),
            Route("/log", log),
        ]
        handlers: dict[Any, Any] = {Refused: _refused, DecodeError: _undecoded, TooLarge: _too_large, RunError: _broken}
        return Guard(Starlette(routes=routes, exception_handlers=handlers), "", "", MAX_BYTES)


def _said(status: int, reason: str, detail: str) -> Response:
    return JSONResponse({"reason": reason, "detail": detail}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _said(409, error.reason, str(error))


def _undecoded(request: Request, error: Exception) -> Response:
    assert isinstance(error, DecodeError)
    return _said(400, error.reason, str(error))


def _too_large(request: Request, error: Exception) -> Response:
    return _said(413, "too-large", f"at most {MAX_BYTES} bytes are read")


def _broken(request: Request, error: Exception) -> Response:
    return _said(503, "unavailable", str(error))


class Court:
    """A judge as a peer sees it. Example: `Court("http://127.0.0.1:4300", key).try_(model_digest, say, 0)`."""

    def __init__(self, url: str, key: Key) -> None:
        self._url, self._key = url.rstrip("/"), key
        self.charter = self._noun(Charter, "/charter", None)

    def try_(self, model: bytes, say: Callable[[Challenge], str], number: int, round_: int = 0) -> Judged:
        """Ask for a question, answer it, and get the judgement.

        Args:
            model: digest of the weights that answer.
            say: gives the answer.
            number: another one for each question.

        Raises:
            NetworkError: the judge is not there, refuses, or says what it did not sign.
        """
        ask = ask_of(self._key, charter_digest(self.charter), model, number, round_)
        challenge = self._noun(Challenge, "/ask", ask)
        if challenge.ask != ask or not verify(challenge.judge, signed_bytes(challenge), challenge.signature):
            raise NetworkError(f"the judge at {self._url} answers with a question that it did not sign for us")
        return self._noun(Judged, "/reply", reply_of(self._key, challenge, say(challenge)))

    def _noun(self, kind: type[T], path: str, body: Noun | None) -> T:
        request = urllib.request.Request(self._url + path, encode(body) if body else None)
        try:
            with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
                return decode(kind, answer.read(1 << 24), 1 << 24)
        except urllib.error.HTTPError as error:
            with error:
                why = error.read(400).decode("utf-8", "replace")
            raise NetworkError(f"the judge at {self._url} refuses: {why}") from error
        except (OSError, ValueError, DecodeError) as error:
            raise NetworkError(f"no judge answers at {self._url} ({error}); check the address") from error


def require_http(url: str) -> str:
    """The address of a judge.

    Raises:
        ConfigError: it is no URL.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a judge; one begins with http:// or https://")
    return url


def fresh_number() -> int:
    """A number that no wish has had before."""
    return secrets.randbits(52)


def answerer(policy: Policy, temperature: float) -> Callable[[Challenge], str]:
    """How a model answers a challenge: once, with a seed that follows from it."""

    def say(challenge: Challenge) -> str:
        messages = [(message.role, message.content) for message in challenge.prompt]
        prompt = Prompt.of_messages(policy, messages, challenge.max_tokens, (), challenge.sealed)
        sampling = Sampling(temperature, 1.0, 0, prompt.max_tokens, seed_for("judged", challenge.sealed))
        return decode_prompt(policy, prompt, 1, sampling)[0].text

    return say
