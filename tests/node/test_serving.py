"""A served model: what OpenAI's own client gets, what is refused, and that tokens are those of the sampler."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import uvicorn
from starlette.testclient import TestClient

from waggle.core.types import Sampling
from waggle.core.web import listening
from waggle.node import serving
from waggle.node.serving import app_of
from waggle.policy.decoding import Prompt, decode
from waggle.policy.load import load
from waggle.policy.policy import Policy

HI = [{"role": "user", "content": "hi"}]
BASE = {"model": "tiny", "messages": HI, "max_tokens": 12, "seed": 3}


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return load("tiny")


@pytest.fixture
def client(tiny: Policy) -> TestClient:
    return TestClient(app_of(tiny), base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def official(tiny: Policy) -> Iterator[openai.OpenAI]:
    """OpenAI's client and a real server on loopback."""
    sock = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app_of(tiny), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    made = openai.OpenAI(base_url=f"http://127.0.0.1:{sock.getsockname()[1]}/v1", api_key="none", max_retries=0)
    with made:
        yield made
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def asked(client: TestClient, **changes: Any) -> Any:
    return client.post("/v1/chat/completions", json={**BASE, **changes})


def streamed(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_official_client_is_answered_and_the_stream_is_the_same_text(official: openai.OpenAI) -> None:
    assert [model.id for model in official.models.list()] == ["tiny"]
    options: Any = {"model": "tiny", "messages": HI, "max_tokens": 12, "seed": 3}
    whole = official.chat.completions.create(**options)
    told = list(official.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(one.choices[0].delta.content or "" for one in told if one.choices)
    assert text == whole.choices[0].message.content
    assert len(told) > 5
    assert told[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert told[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_the_official_client_gets_its_own_errors(official: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt' here; this is 'tiny'"):
        official.chat.completions.create(model="gpt", messages=HI)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="tools: not known here, and not ignored"):
        official.chat.completions.create(model="tiny", messages=HI, tools=[])  # type: ignore[arg-type]


def test_equal_seeds_equal_answers_and_none_other_ones(client: TestClient) -> None:
    def said(**changes: Any) -> list[str]:
        return [choice["message"]["content"] for choice in asked(client, **changes).json()["choices"]]

    assert said() == said()
    assert said(seed=None) != said(seed=None)
    assert len(set(said(n=4))) == 4
    assert said(temperature=0, n=2)[0] == said(temperature=0, seed=9)[0]
    assert said(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]) == said()


def test_log_probabilities_are_told_by_token(client: TestClient, tiny: Policy) -> None:
    choice = asked(client, logprobs=True).json()["choices"][0]
    told = choice["logprobs"]["content"]
    assert len(told) == 12
    assert all(one["logprob"] < 0 and bytes(one["bytes"]).decode() == one["token"] for one in told)


def test_a_sequence_ends_an_answer(client: TestClient) -> None:
    text = asked(client, max_tokens=40).json()["choices"][0]["message"]["content"]
    stop = next(text[at : at + 2] for at in range(6, 30) if "\ufffd" not in text[at : at + 2])
    cut = text[: text.index(stop)]
    for stops in (stop, [stop, "nothing of the kind"]):
        choice = asked(client, max_tokens=40, stop=stops).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (cut, "stop")
    told = streamed(asked(client, max_tokens=40, stop=stop, stream=True).text)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in told) == cut
    assert told[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, 400, "messages.0"),
        ({"temperature": 3}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 65}, 400, "n: "),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"presence_penalty": 1.0}, 400, "presence_penalty: not known here, and not ignored; leave it out"),
        ({"model": "other"}, 404, "there is no model 'other' here"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options has no effect without stream"),
        ({"stream": True, "n": 2}, 400, "cannot be streamed here"),
        ({"stream": True, "logprobs": True}, 400, "cannot be streamed here"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "reads at most"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(
    client: TestClient, changes: dict[str, Any], status: int, says: str
) -> None:
    answer = asked(client, **changes)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 1}'])
def test_a_body_that_is_none_is_refused(client: TestClient, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/generate"):
        assert client.post(path, content=body).status_code == 400


def test_tokens_are_those_of_the_sampler(client: TestClient, tiny: Policy) -> None:
    ids = list(tiny.encode_text("abc"))
    answer = client.post("/generate", json={"ids": ids, "max_tokens": 6, "seed": 4, "n": 2, "top_k": 20}).json()
    wanted = decode(tiny, Prompt.of_ids(tiny, tuple(ids), 6), 2, Sampling(1.0, 1.0, 20, 6, 4))
    for told, one in zip(answer["answers"], wanted, strict=True):
        assert one.tokens is not None
        assert tuple(told["ids"]) == one.tokens.ids
        assert told["logprobs"] == pytest.approx(one.tokens.logprobs_T.tolist())
        assert told["finish"] == one.finish
    for wrong in ({"ids": []}, {"ids": [-1]}, {"ids": [10**6]}, {"ids": ids, "temprature": 1}):
        assert client.post("/generate", json=wrong).status_code == 400


def test_a_token_and_a_health_check(tiny: Policy) -> None:
    guarded = TestClient(app_of(tiny, "a-long-secret-token"), base_url="http://127.0.0.1:8000")
    assert guarded.get("/v1/models").status_code == 401
    assert guarded.get("/health", headers={"authorization": "Bearer a-long-secret-token"}).json()["model"] == "tiny"


def test_more_than_may_wait_are_told_to_come_back(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_WAITING", 0)
    answer = asked(client)
    assert answer.status_code == 503
    assert "are waiting" in answer.json()["error"]["message"]


def test_a_failure_in_the_midst_of_a_stream_is_told(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise serving.WaggleError("its scores are not numbers")

    monkeypatch.setattr(serving, "decode", failing)
    text = asked(client, stream=True).text
    assert '"message": "its scores are not numbers"' in text
    assert "[DONE]" not in text
