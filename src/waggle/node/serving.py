"""`waggle serve`: a model behind the chat interface that OpenAI defined, and its tokens for whoever wants those.

POST /v1/chat/completions   answers, whole or as a stream of events
GET  /v1/models             the one model that is served
POST /generate              tokens in, tokens out, with the log-probability of each (docs/design.md, section 3: no text
                            is encoded twice)
GET  /health                200 while it answers

One request is computed at a time, by the decoding loop that training uses, and a bounded number waits; a client that
goes away ends its own. What would have to be ignored is refused with a sentence. Left out: tools, images, batches of
requests, anything that is stored.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from waggle.core.codec import digest_bytes
from waggle.core.errors import WaggleError
from waggle.core.rng import seed_for
from waggle.core.types import Completion, Sampling
from waggle.core.web import Guard, TooLarge, refusal
from waggle.policy.decoding import Prompt, decode
from waggle.policy.policy import Policy

MAX_WAITING = 32
MOST_TOKENS = 512
"""Of an answer where nothing else was asked for."""


class Part(BaseModel):
    """A part of a message; only text is read."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Said(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Wish(BaseModel):
    """How answers are drawn."""

    model_config = ConfigDict(extra="forbid")
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Annotated[int, Field(ge=0, lt=1 << 53)] | None = None


class StreamOptions(BaseModel):
    """What a stream tells at its end."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Chat(Wish):
    """The body of a chat request; what is not listed is refused, what has no effect here is accepted as null."""

    model: str
    messages: Annotated[list[Said], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    user: str | None = None


class Generate(Wish):
    """The body of a request for tokens."""

    ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = MOST_TOKENS
    top_k: Annotated[int, Field(ge=0)] = 0


@dataclass
class Service:
    """The model, and whose turn it is."""

    policy: Policy
    created_s: int = field(default_factory=lambda: int(time.time()))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    served: int = 0

    async def in_turn(self, work: Callable[[], list[Completion]]) -> list[Completion]:
        """What a computation returns, after those who came before."""
        self.waiting += 1
        try:
            async with self.turn:
                self.served += 1
                return await run_in_threadpool(work)
        finally:
            self.waiting -= 1

    def sampling(self, wish: Wish, max_tokens: int, top_k: int = 0) -> Sampling:
        """Another seed for each request that names none."""
        seed = seed_for("serve", self.served) if wish.seed is None else wish.seed
        return Sampling(wish.temperature, wish.top_p, top_k, max_tokens, seed)


def app_of(policy: Policy, token: str = "", host: str = "127.0.0.1") -> Any:
    """The service as an ASGI application.

    Args:
        token: what clients have to send; empty asks for none.
        host: where it listens, which decides by which names it can be asked for.
    """
    service = Service(policy)

    async def chat(request: Request) -> Response:
        wish = Chat.model_validate_json(await request.body())
        if wish.model != policy.name:
            return refusal(404, f"there is no model {wish.model!r} here; this is {policy.name!r}")
        if wish.stream_options and not wish.stream:
            return refusal(400, "stream_options has no effect without stream; leave it out")
        if wish.stream and (wish.n > 1 or wish.logprobs):
            return refusal(400, "n above 1 and logprobs cannot be streamed here; ask without stream")
        return await _streamed(service, wish) if wish.stream else await _whole(service, wish)

    async def tokens(request: Request) -> Response:
        return await _tokens(service, Generate.model_validate_json(await request.body()))

    async def models(request: Request) -> Response:
        one = {"id": policy.name, "object": "model", "created": service.created_s, "owned_by": "waggle"}
        return JSONResponse({"object": "list", "data": [one]})

    async def health(request: Request) -> Response:
        return JSONResponse({"model": policy.name, "waiting": service.waiting})

    def limited(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            if service.waiting >= MAX_WAITING:
                return refusal(503, f"{MAX_WAITING} requests are waiting; try again in a moment")
            return await handler(request)  # type: ignore[no-any-return]

        return answer

    routes = [
        Route("/v1/chat/completions", limited(chat), methods=["POST"]),
        Route("/generate", limited(tokens), methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", health),
    ]
    handlers: dict[Any, Any] = {ValidationError: _invalid, WaggleError: _wrong, TooLarge: _too_large}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, host)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the body"
    known = first["type"] != "extra_forbidden"
    return refusal(400, f"{where}: {first['msg'] if known else 'not known here, and not ignored; leave it out'}")


def _wrong(request: Request, error: Exception) -> Response:
    return refusal(400, str(error))


def _too_large(request: Request, error: Exception) -> Response:
    return refusal(413, "the body is larger than it says")


def _prompt(service: Service, wish: Chat) -> Prompt:
    messages = [("system" if one.role == "developer" else one.role, one.text) for one in wish.messages]
    most = wish.max_completion_tokens or wish.max_tokens or MOST_TOKENS
    stops = [wish.stop] if isinstance(wish.stop, str) else wish.stop or []
    question = digest_bytes("Chat", json.dumps(messages).encode())
    return Prompt.of_messages(service.policy, messages, most, tuple(stops), question)


async def _whole(service: Service, wish: Chat) -> Response:
    prompt = _prompt(service, wish)
    sampling = service.sampling(wish, prompt.max_tokens)
    answers = await service.in_turn(lambda: decode(service.policy, prompt, wish.n, sampling))
    choices = [
        {
            "index": i,
            "message": {"role": "assistant", "content": prompt.cut(answer.text), "refusal": None},
            "finish_reason": _finish(prompt, answer),
            "logprobs": {"content": _told(service.policy, answer)} if wish.logprobs else None,
        }
        for i, answer in enumerate(answers)
    ]
    head = _head(service, "chat.completion")
    return JSONResponse({**head, "choices": choices, "usage": _usage(prompt, answers)})


def _finish(prompt: Prompt, answer: Completion) -> str:
    return "stop" if prompt.cut(answer.text) != answer.text else answer.finish


def _told(policy: Policy, answer: Completion) -> list[dict[str, Any]]:
    """Every token with its log-probability."""
    assert answer.tokens is not None
    pieces = [policy.decode((one,)) for one in answer.tokens.ids]
    values = answer.tokens.logprobs_T.tolist()
    return [
        {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, value in zip(pieces, values, strict=True)
    ]


def _head(service: Service, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{service.created_s}-{service.served}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": service.policy.name}


def _usage(prompt: Prompt, answers: list[Completion]) -> dict[str, int]:
    drawn = sum(len(answer.tokens.ids) for answer in answers if answer.tokens)
    asked = len(prompt.ids)
    return {"prompt_tokens": asked, "completion_tokens": drawn, "total_tokens": asked + drawn}


async def _streamed(service: Service, wish: Chat) -> Response:
    prompt = _prompt(service, wish)
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    loop, gone = asyncio.get_running_loop(), threading.Event()

    def say(piece: str) -> bool:
        loop.call_soon_threadsafe(pieces.put_nowait, piece)
        return gone.is_set()

    async def work() -> list[Completion]:
        try:
            sampling = service.sampling(wish, prompt.max_tokens)
            return await service.in_turn(lambda: decode(service.policy, prompt, 1, sampling, say))
        finally:
            pieces.put_nowait(None)

    async def events() -> AsyncIterator[bytes]:
        working = asyncio.create_task(work())
        try:
            head = _head(service, "chat.completion.chunk")
            yield _event(head, {"role": "assistant", "content": ""})
            while (piece := await pieces.get()) is not None:
                yield _event(head, {"content": piece})
            (answer,) = await working
            yield _event(head, {}, _finish(prompt, answer))
            if wish.stream_options and wish.stream_options.include_usage:
                yield _line({**head, "choices": [], "usage": _usage(prompt, [answer])})
            yield b"data: [DONE]\n\n"
        except WaggleError as error:  # the head is sent already
            yield _line({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
        finally:
            gone.set()
            await asyncio.wait([working])

    return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def _event(head: dict[str, Any], delta: dict[str, str], finish: str | None = None) -> bytes:
    return _line({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})


def _line(told: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(told)}\n\n".encode()


async def _tokens(service: Service, wish: Generate) -> Response:
    prompt = Prompt.of_ids(service.policy, tuple(wish.ids), wish.max_tokens)
    sampling = service.sampling(wish, prompt.max_tokens, wish.top_k)
    answers = await service.in_turn(lambda: decode(service.policy, prompt, wish.n, sampling))
    told = [
        {"ids": answer.tokens.ids, "logprobs": answer.tokens.logprobs_T.tolist(), "finish": answer.finish}
        for answer in answers
        if answer.tokens
    ]
    return JSONResponse({"model": service.policy.name, "answers": told})
