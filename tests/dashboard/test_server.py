"""The page's server: what it gives to whom, and what Prometheus reads."""

import asyncio
import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.dashboard.parts import event, made, round_, used
from waggle.dashboard import server
from waggle.dashboard.feed import Feed
from waggle.dashboard.server import PAGE, app_of

TOKEN = "a-long-secret-token"


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    folder = made(tmp_path / "run")
    for number in (1, 2):
        round_(folder, number, heldout={"chain_sum": [number, 10]})
    used(folder)
    event(folder, "round", round=2, seconds=1.5, trained_s=9.0, sent_bytes=10, received_bytes=20, memory_mb=300.0)
    feed = Feed([tmp_path / "run"])
    feed.look()
    return feed


def client(feed: Feed, token: str = "", host: str = "127.0.0.1") -> TestClient:
    return TestClient(app_of(feed, token, host), base_url="http://127.0.0.1:4200", follow_redirects=False)


def test_the_page_comes_whole_and_may_fetch_nothing_from_elsewhere(feed: Feed) -> None:
    for path in ("/", *(f"/page/{name}" for name in PAGE if name)):
        answer = client(feed).get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    for path in ("/page/none.js", "/page/..%2f..%2fserver.py", "/page/", "/other"):
        assert client(feed).get(path).status_code == 404


def test_a_token_opens_the_page_once_and_then_a_cookie_does(feed: Feed) -> None:
    with_token = client(feed, TOKEN, "0.0.0.0")
    assert with_token.get("/").status_code == 401
    assert with_token.get("/?token=wrong").status_code == 401
    led = with_token.get(f"/?token={TOKEN}")
    assert (led.status_code, led.headers["location"]) == (303, "/")
    assert "HttpOnly" in led.headers["set-cookie"]
    assert "samesite=strict" in led.headers["set-cookie"].lower()
    assert with_token.get("/").status_code == 200
    assert client(feed, TOKEN).get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_prometheus_reads_some_twenty_series_a_node_with_bounded_labels(feed: Feed) -> None:
    lines = [line for line in client(feed).get("/metrics").text.splitlines() if not line.startswith("#")]
    values = {line.partition("{")[0].partition(" ")[0]: line.rpartition(" ")[2] for line in lines}
    assert 17 <= len(values) <= 25
    assert all(line.count("=") == 2 and 'node="node-1",run="run"' in line for line in lines if "{" in line)
    assert float(values["waggle_round"]) == 2
    assert float(values["waggle_heldout"]) == pytest.approx(0.2)
    assert float(values["waggle_generated_tokens_total"]) == 20
    assert float(values["waggle_memory_bytes"]) == 3e8


def test_the_stream_begins_with_what_there_is_and_ends_when_the_page_goes(feed: Feed) -> None:
    async def story() -> None:
        stream = server._stream(feed)
        first = await anext(stream)
        assert first.startswith(b"retry: ")
        assert json.loads(first.partition(b"data: ")[2])[0]["kind"] == "hello"
        assert feed.num_watchers == 1
        folder = next(iter(feed.nodes.values())).folder
        round_(folder, 3)
        feed.look()
        assert json.loads((await anext(stream))[6:])[0]["round"] == 3
        await stream.aclose()  # type: ignore[attr-defined]
        assert feed.num_watchers == 0

    asyncio.run(story())


def test_a_page_without_news_is_kept_alive(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BEAT_S", 0.01)

    async def story() -> None:
        stream = server._stream(feed)
        await anext(stream)
        assert await anext(stream) == b": still here\n\n"
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(story())


def test_no_more_pages_than_there_may_be(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PAGES", 0)
    assert client(feed).get("/events").status_code == 503
