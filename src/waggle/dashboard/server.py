"""`waggle dash`: the page, its stream of events, and /metrics.

GET /           the page: one file of each kind, nothing fetched from elsewhere
GET /events     what there is and what comes, as server-sent events
GET /metrics    for Prometheus

Everything is read from run folders, so the page runs apart from the nodes, survives their restarts, and cannot slow a
round down. A page that falls behind is sent away and comes back by itself for the present state. With a token the page
is opened once with `?token=...`, which becomes a cookie.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from waggle.core.web import Guard
from waggle.dashboard.feed import Feed
from waggle.dashboard.metrics import exposition

PAGE = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "state.js": ("state.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "views.js": ("views.js", "text/javascript; charset=utf-8"),
    "main.js": ("main.js", "text/javascript; charset=utf-8"),
}
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
BEAT_S = 15.0
"""After so long without news a line is sent, so that a page that has gone is noticed."""
MAX_PAGES = 512


def app_of(feed: Feed, token: str = "", host: str = "127.0.0.1") -> Any:
    """The page as an ASGI application.

    Args:
        token: what visitors have to bring; empty asks for none.
        host: where it listens.
    """

    async def page(request: Request) -> Response:
        name, kind = PAGE[request.path_params.get("name", "")]
        return Response(files("waggle.dashboard").joinpath("page", name).read_bytes(), media_type=kind, headers=HEADERS)

    async def events(request: Request) -> Response:
        if feed.num_watchers >= MAX_PAGES:
            return Response("too many pages are open", 503)
        return StreamingResponse(_stream(feed), media_type="text/event-stream", headers=HEADERS)

    async def metrics(request: Request) -> Response:
        return Response(exposition(feed), media_type="text/plain; version=0.0.4", headers=HEADERS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        feed.look()
        following = asyncio.create_task(feed.follow())
        yield
        following.cancel()

    routes = [
        Route("/", page),
        Route("/events", events),
        Route("/metrics", metrics),
        Route("/page/{name}", _known(page)),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), token, host)


def _known(page: Any) -> Any:
    async def answer(request: Request) -> Response:
        if request.path_params["name"] not in PAGE:
            return Response("there is no such file", 404)
        return await page(request)  # type: ignore[no-any-return]

    return answer


async def _stream(feed: Feed) -> AsyncIterator[bytes]:
    present, queue = feed.watch()
    try:
        yield b"retry: 2000\n\n" + present
        while True:
            try:
                message = await asyncio.wait_for(queue.get(), BEAT_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if message is None:
                return
            yield message
    finally:
        feed.leave(queue)
