"""A node that only gives: answers come from an OpenAI-compatible server, and nothing is learned here.

Any server that speaks `POST /chat/completions` will do: vLLM, llama.cpp, a hosted one. So a bigger box adds experience
to a swarm without training. Answers are text alone, since tokens and log-probabilities of such servers cannot be
checked; they are graded, sealed and admitted like any others. Questions are asked a few at a time; a server that gives
fewer answers than it was asked for is asked again. What fails is tried again for a while, later each time.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, TypeVar

from waggle.core.codec import digest_bytes
from waggle.core.config import ModelConfig
from waggle.core.errors import ConfigError, ModelError
from waggle.core.rng import seed_for
from waggle.core.types import MAX_TEXT_CHARS, Completion, Sampling, Task, Text
from waggle.node.learner import Giver

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 8
ANSWER_S = 120.0
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0)
"""Between tries; after the last the node ends, for whoever started it to start it again."""
MAX_REPLY_BYTES = 64 << 20


class EndpointLearner(Giver):
    """Fills `Learner`. Example: `EndpointLearner(ModelConfig(name="m", endpoint="http://localhost:8000/v1"))`.

    Raises:
        ConfigError: the key file cannot be read.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.model, self._url = model.name, model.endpoint.rstrip("/") + "/chat/completions"
        self._headers = {"Content-Type": "application/json"}
        if model.endpoint_key:
            try:
                key = Path(model.endpoint_key).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"cannot read the key of the endpoint, {model.endpoint_key}: {error}") from error
            self._headers["Authorization"] = f"Bearer {key}"

    def base_digest(self) -> bytes:
        return digest_bytes("Endpoint", f"{self._url} {self.model}".encode())

    def describe(self) -> str:
        return f"{self.model} at {self._url} answers; this node gives experience and does not learn"

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        return at_once(lambda task: self._answers(task, num, sampling), tasks)

    def _answers(self, task: Task, num: int, sampling: Sampling) -> list[Completion]:
        answers: list[Completion] = []
        while len(answers) < num:
            body = {
                "model": self.model,
                "messages": [{"role": message.role, "content": message.content} for message in task.prompt],
                "n": num - len(answers),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": min(task.max_tokens, sampling.max_tokens),
                "seed": seed_for("endpoint", sampling.seed, task.question, len(answers)) % 2**31,
            }
            answers += self._ask(body)[: num - len(answers)]
        return answers

    def _ask(self, body: dict[str, Any]) -> list[Completion]:
        """One request, tried again while it fails.

        Raises:
            ModelError: it failed for minutes, or the server refuses what it is asked.
        """
        why = ""
        for wait_s in (*WAITS_S, 0.0):
            try:
                return _completions(self._post(body))
            except urllib.error.HTTPError as error:
                why = f"it says {error.code} {error.read(300).decode('utf-8', 'replace')}"
                if error.code in (400, 401, 403, 404, 422):
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = str(error)
            time.sleep(wait_s)
        raise ModelError(f"the endpoint {self._url} gives no answers ({why}); start the server, or mend its settings")

    def _post(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self._url, json.dumps(body).encode(), self._headers)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
            return json.loads(reply.read(MAX_REPLY_BYTES))


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do it for a few at a time, in threads that hold up nobody's end: who is interrupted waits for no server."""
    jobs: SimpleQueue[tuple[T, Future[R]]] = SimpleQueue()
    futures: list[Future[R]] = [Future() for _ in items]
    for job in zip(items, futures, strict=True):
        jobs.put(job)

    def run() -> None:
        while True:
            try:
                item, future = jobs.get_nowait()
            except Empty:
                return
            try:
                future.set_result(work(item))
            except BaseException as error:
                future.set_exception(error)
                while not jobs.empty():  # the others would meet the same, minutes later
                    with suppress(Empty):
                        jobs.get_nowait()[1].set_exception(error)

    for _ in range(min(AT_ONCE, len(items))):
        Thread(target=run, daemon=True).start()
    return [future.result() for future in futures]


def _completions(reply: Any) -> list[Completion]:
    """The answers of a reply.

    Raises:
        ValueError: it is none of the form that is spoken.
    """
    try:
        found = [(choice["message"]["content"] or "", choice.get("finish_reason")) for choice in reply["choices"]]
        if not found or not all(isinstance(text, str) for text, _ in found):
            raise ValueError("a reply without answers")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a reply that is none of /chat/completions") from error
    return [_completion(text, finish) for text, finish in found]


def _completion(text: str, finish: object) -> Completion:
    ended: Literal["stop", "length"] = "length" if finish == "length" else "stop"
    return Completion((Text(text.encode("utf-8", "replace").decode()[:MAX_TEXT_CHARS]),), ended)
