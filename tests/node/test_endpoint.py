"""Answers from an OpenAI-compatible server on loopback, and from one that misbehaves."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.node.parts import easy_family, keys
from waggle.core.clock import SystemClock
from waggle.core.config import ModelConfig, load
from waggle.core.errors import ConfigError, ModelError
from waggle.core.types import Message, Sampling, Task, TaskRef
from waggle.net.memory import MemoryNetwork
from waggle.node import build, endpoint
from waggle.node.endpoint import EndpointLearner
from waggle.node.session import open_node, play_node, prepare
from waggle.swarm.charter import new_charter
from waggle.tasks.grade import Graders

TASK = Task(
    TaskRef("chain_sum", b"c" * 32, 0, 0, 0), (Message("user", "3 + 4 ="),), "exact", "7", b"q" * 32, max_tokens=8
)
Reply = tuple[int, Any]


class Server:
    """What was asked, and what is answered: one reply after the other, the last again and again."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked, self.headers = list(replies), [], []  # type: ignore[var-annotated]

    def answer(self, body: dict[str, Any]) -> Reply:
        self.asked.append(body)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def choices(*texts: str, finish: str = "stop") -> Reply:
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": finish} for text in texts]}


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """The URL of a running server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.headers.append(dict(self.headers))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, reply = server.answer(body) if self.path == "/v1/chat/completions" else (404, "no such path")
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def asked(server: Server, num: int = 4, **model: str) -> list[tuple[str, str]]:
    with serving(server) as url:
        learner = EndpointLearner(ModelConfig(name="m", endpoint=url, **model))
        (answers,) = learner.generate([TASK], num, Sampling(temperature=0.7, max_tokens=6, seed=3))
    return [(answer.text, answer.finish) for answer in answers]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(endpoint.time, "sleep", waited.append)
    return waited


def test_a_group_is_one_request() -> None:
    server = Server(choices("7", "8", "7", "seven"))
    assert asked(server) == [("7", "stop"), ("8", "stop"), ("7", "stop"), ("seven", "stop")]
    (body,) = server.asked
    seed = body.pop("seed")
    assert 0 <= seed < 2**31
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "3 + 4 ="}],
        "n": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 6,
    }


def test_a_server_that_gives_one_at_a_time_is_asked_again_with_another_seed() -> None:
    server = Server(choices("7"))
    assert len(asked(server)) == 4
    assert [body["n"] for body in server.asked] == [4, 3, 2, 1]
    assert len({body["seed"] for body in server.asked}) == 4


def test_what_is_cut_off_or_no_text_or_too_much_is_taken_as_it_is() -> None:
    assert asked(Server(choices("7 bec", finish="length")), 1) == [("7 bec", "length")]
    nothing = (200, {"choices": [{"message": {"content": None}}]})
    assert asked(Server(nothing), 1) == [("", "stop")]
    assert asked(Server(choices("a", "b", "c", "d", "e", "f")), 2) == [("a", "stop"), ("b", "stop")]
    assert len(asked(Server(choices("x" * 200_000)), 1)[0][0]) == 100_000


@pytest.mark.parametrize(
    "bad",
    [(500, {"error": "busy"}), (200, b"not json"), (200, {"choices": []}), (200, [1]), (200, {"choices": [{}]})],
)
def test_what_fails_is_tried_again_later(waits: list[float], bad: Reply) -> None:
    assert asked(Server(bad, bad, choices("7")), 1) == [("7", "stop")]
    assert waits == [1.0, 2.0]


def test_a_server_that_never_answers_ends_the_node_in_one_sentence(waits: list[float]) -> None:
    with pytest.raises(ModelError, match=r"the endpoint .* gives no answers .it says 503 .*busy.*; start the server"):
        asked(Server((503, {"error": "busy"})))
    assert waits[-2:] == [60.0, 0.0]
    learner = EndpointLearner(ModelConfig(name="m", endpoint="http://127.0.0.1:1/v1"))
    with pytest.raises(ModelError, match="Connection refused"):
        learner.generate([TASK], 1, Sampling())


def test_a_server_that_refuses_is_not_asked_again(waits: list[float]) -> None:
    with pytest.raises(ModelError, match="it says 401"):
        asked(Server((401, {"error": "who are you?"})))
    assert waits == []


def test_a_key_is_sent_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    server = Server(choices("7"))
    asked(server, 1, endpoint_key=str(tmp_path / "key"))
    assert server.headers[0]["Authorization"] == "Bearer secret"
    with pytest.raises(ConfigError, match="cannot read the key of the endpoint"):
        EndpointLearner(ModelConfig(endpoint="http://x/v1", endpoint_key=str(tmp_path / "none")))


@pytest.mark.parametrize(
    "sets",
    [["model.endpoint=localhost"], ["model.endpoint_key=x"], ["model.endpoint=http://x/v1", "model.lora_rank=4"]],
)
def test_settings_without_effect_are_refused(sets: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"model\.(endpoint|lora_rank)"):
        load(None, sets)


def test_a_node_that_only_gives_plays_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waggle.node.session.Graders", partial(Graders, workers=0))
    network = MemoryNetwork(0, SystemClock())
    monkeypatch.setattr("waggle.node.place.transport_for", lambda folder, key, *_: network.attach(key.id))
    console = Console(file=StringIO(), width=200)
    charter = new_charter(keys(1)[0], "test", [easy_family(tmp_path)], created_ms=5)
    with serving(Server(choices("a", "z"))) as url:
        sets = [
            f"model.endpoint={url}",
            "run.rounds=3",
            "round.local=2",
            "round.group_size=4",
            "share.publish=all",
            "eval.report=6",
        ]
        config = build.only_gives(load(None, [*sets, "tasks.file=x", "tasks.share_file=true"]))
        folder = prepare(tmp_path / "run", config, keys(1)[0], charter, [])
        session = open_node(console, folder, tmp_path / build.FILES)
        play_node(session)
        offered = [experience for sealed in session.node.exchange.window.values() for experience in sealed]
        assert len(offered) == 6
        assert all(len(experience.body.completions) == 4 for experience in offered)
        assert session.node.state.step == 0
        again = open_node(console, type(folder).open(folder.path), tmp_path / build.FILES)
        assert again.node.state.round == 3
        again.close()
    assert isinstance(console.file, StringIO)
    assert "this node gives experience and does not learn" in console.file.getvalue()
    assert not (folder.path / "model").exists()
