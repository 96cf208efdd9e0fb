"""What our HTTP services have in common: loopback or a token, bounded bodies, and errors in a sentence.

A service on loopback answers only to loopback's names, so that no page elsewhere can reach it through a name of its own
(DNS rebinding); on any other address it asks everybody for a token. Left out: TLS, which a proxy in front does better.
"""

import errno
import hmac
import ipaddress
import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waggle.core.errors import ConfigError, NetworkError
from waggle.core.files import disk_errors

MAX_BODY_BYTES = 1 << 20
COOKIE = "waggle-token"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None, host: str) -> str:
    """The token of a file, which is made where it is not there; empty where none is asked for.

    Raises:
        ConfigError: an address that others can reach and no file, or a file that holds none or that others can read.
    """
    if file is None:
        if not is_loopback(host):
            raise ConfigError(f"--host {host} can be reached from outside; protect it with --token FILE")
        return ""
    with disk_errors(file):
        if not file.exists():
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as handle:
                handle.write(secrets.token_urlsafe(24) + "\n")
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} can be read by others; run: chmod 600 {file}")
        token = file.read_text("utf-8", "replace").strip()
    if len(token) < 16:
        raise ConfigError(f"{file} holds no token of 16 characters or more; delete it to have one made")
    return token


def refusal(status: int, why: str) -> JSONResponse:
    """An error as the OpenAI interface words it, which other clients read as well."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": why, "type": kind, "param": None, "code": None}}, status)


class Guard:
    """Middleware: who may ask at all, and how much he may send. Example: `Guard(app, token="", host="127.0.0.1")`.

    Args:
        host: where it listens; empty for a service to which anybody may come under any name.
    """

    def __init__(self, app: ASGIApp, token: str, host: str, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._token, self._max_bytes = app, token, max_body_bytes
        self._names = LOOPBACK if is_loopback(host) else ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._token and self._is_key(parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]):
            await self._let_in(scope, receive, send)
            return
        if why := self._why_not(headers):
            await refusal(*why)(scope, receive, send)
            return
        await self._app(scope, _bounded(receive, self._max_bytes), send)

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From an address with the token to the same without it, so that it stays out of what a browser remembers."""
        answer = RedirectResponse(scope["path"], 303)
        answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        await answer(scope, receive, send)

    def _why_not(self, headers: Headers) -> tuple[int, str] | None:
        name = headers.get("host", "").lower().removesuffix(".")
        name = name if name.endswith("]") else name.rpartition(":")[0] or name
        if self._names and name not in self._names:
            return 403, f"this service is {self._names[0]}'s alone and was asked for as {name!r}"
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        shown = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if self._token and not (self._is_key(given) or self._is_key(shown)):
            return 401, "a token is needed: send `Authorization: Bearer TOKEN`, or open the page with ?token=TOKEN once"
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > self._max_bytes:
            return 413, f"at most {self._max_bytes} bytes are read"
        return None


class TooLarge(Exception):
    """A body that says less than it sends."""


def _bounded(receive: Receive, max_bytes: int) -> Receive:
    total_bytes = 0

    async def bounded() -> Message:
        nonlocal total_bytes
        message = await receive()
        total_bytes += len(message.get("body", b""))
        if total_bytes > max_bytes:
            raise TooLarge
        return message

    return bounded


def listening(host: str, port: int, or_any: bool = False) -> socket.socket:
    """A socket that listens, so that a port in use is said before anything is loaded.

    Args:
        or_any: whether a free port does where this one is taken.

    Raises:
        NetworkError: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        if or_any and error.errno == errno.EADDRINUSE:
            return listening(host, 0)
        raise NetworkError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return sock


def serve(app: Any, sock: socket.socket, tied: bool = False) -> None:
    """Answer until SIGINT or SIGTERM; requests that are being answered then have a few seconds to end.

    Args:
        tied: whether the end of the standard input is one, too, so that nothing outlives who started it.
    """
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        server.should_exit = True

    if tied:
        threading.Thread(target=wait_for_end, name="tied", daemon=True).start()
    with suppress(KeyboardInterrupt):  # which the server raises again once it has ended in order
        server.run([sock])
