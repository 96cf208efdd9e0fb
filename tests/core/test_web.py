"""Who may ask our services, and how much he may send."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from waggle.core.errors import ConfigError, NetworkError
from waggle.core.web import Guard, TooLarge, is_loopback, listening, read_token, refusal


async def _echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


def client(token: str = "", host: str = "127.0.0.1", name: str = "127.0.0.1:8000") -> TestClient:
    handlers = {TooLarge: lambda request, error: refusal(413, "too large")}
    app = Starlette(routes=[Route("/", _echo, methods=["GET", "POST"])], exception_handlers=handlers)  # type: ignore[arg-type]
    return TestClient(Guard(app, token, host, max_body_bytes=100), base_url=f"http://{name}")


@pytest.mark.parametrize("name", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "localhost."])
def test_loopback_answers_to_its_names(name: str) -> None:
    assert client(name=name).get("/").status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example:8000", "192.168.0.7:8000"])
def test_and_to_no_other(name: str) -> None:
    answer = client(name=name).get("/")
    assert answer.status_code == 403
    assert "was asked for as" in answer.json()["error"]["message"]


def test_elsewhere_a_token_is_asked_for() -> None:
    other = client("a-long-secret-token", "0.0.0.0", "bees.example")
    assert other.get("/").status_code == 401
    assert other.get("/", headers={"authorization": "Bearer a-long-secret-tokem"}).status_code == 401
    assert other.get("/", headers={"authorization": "Bearer a-long-secret-token"}).status_code == 200


def test_bodies_are_bounded_whatever_they_say() -> None:
    assert client().post("/", content=b"x" * 100).text == "100"
    assert client().post("/", content=b"x" * 101).status_code == 413
    assert client().post("/", content=iter([b"x" * 60, b"x" * 60])).status_code == 413
    assert client().post("/", content=b"x", headers={"content-length": "many"}).status_code == 413


def test_a_token_file_is_made_once_and_kept_to_oneself(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = read_token(file, "0.0.0.0")
    assert len(token) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_token(file, "127.0.0.1") == token
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others; run: chmod 600"):
        read_token(file, "127.0.0.1")
    file.chmod(0o600)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="holds no token"):
        read_token(file, "127.0.0.1")
    assert read_token(None, "::1") == ""
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0 can be reached from outside"):
        read_token(None, "0.0.0.0")


def test_loopback_is_told_from_the_rest() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "bees.example", "")))


def test_a_port_in_use_is_said() -> None:
    with listening("127.0.0.1", 0) as taken, pytest.raises(NetworkError, match="choose another --port"):
        listening("127.0.0.1", taken.getsockname()[1])
