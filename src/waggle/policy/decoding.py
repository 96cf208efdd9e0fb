"""Answers to one prompt as they are drawn, piece by piece, for those who serve a model.

The decoding loop is the sampler's own. A piece is said when its characters are whole, and when no sequence that ends
the answer may have begun in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waggle.core.codec import digest_bytes
from waggle.core.errors import ModelError
from waggle.core.types import Completion, Message, Sampling, Task, TaskRef
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate

Say = Callable[[str], bool]
"""Takes a piece of text; returns whether nobody listens any more."""
_REF = TaskRef("served", digest_bytes("Family", b"served"), 0, 0, 0)
_BROKEN = "\ufffd"


@dataclass(frozen=True)
class Prompt:
    """What is asked, as ids, and where an answer ends."""

    ids: tuple[int, ...]
    max_tokens: int
    stops: tuple[str, ...]
    question: bytes
    """Digest of it, from which the random numbers follow."""

    @classmethod
    def of_messages(
        cls,
        policy: Policy,
        messages: Sequence[tuple[str, str]],
        max_tokens: int,
        stops: tuple[str, ...],
        question: bytes,
    ) -> "Prompt":
        """A conversation of (role, text).

        Raises:
            ModelError: it leaves no room for an answer.
        """
        ids = policy.encode_prompt([Message(role, text) for role, text in messages])  # type: ignore[arg-type]
        return cls._fitting(policy, ids, max_tokens, tuple(stop for stop in stops if stop), question)

    @classmethod
    def of_ids(cls, policy: Policy, ids: tuple[int, ...], max_tokens: int) -> "Prompt":
        """Tokens as they are.

        Raises:
            ModelError: they leave no room for an answer, or are not the model's.
        """
        if max(ids) >= policy.vocabulary:
            raise ModelError(f"{policy.name} has no token {max(ids)}; its ids are below {policy.vocabulary}")
        return cls._fitting(policy, ids, max_tokens, (), digest_bytes("Ids", repr(ids).encode()))

    @classmethod
    def _fitting(
        cls, policy: Policy, ids: tuple[int, ...], max_tokens: int, stops: tuple[str, ...], question: bytes
    ) -> "Prompt":
        room = policy.context - len(ids)
        if room < 1:
            raise ModelError(
                f"the prompt has {len(ids)} tokens and {policy.name} reads at most {policy.context} with the answer; "
                "shorten it"
            )
        return cls(ids, min(max_tokens, room), stops, question)

    def cut(self, text: str) -> str:
        """An answer up to the first sequence that ends it."""
        ends = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


def decode(policy: Policy, prompt: Prompt, num: int, sampling: Sampling, say: Say | None = None) -> list[Completion]:
    """`num` answers; with `say` the first is told as it grows.

    Raises:
        ModelError: the model's scores are not numbers.
    """
    task = Task(_REF, (), "exact", "", prompt.question, prompt.max_tokens)
    teller = _Teller(policy, prompt, num, say)
    (answers,) = generate(policy, [task], num, sampling, teller.watch if say or prompt.stops else None, [prompt.ids])
    teller.end(answers[0])
    return answers


class _Teller:
    """Follows answers as they grow, says the first, and ends each where a sequence ends it."""

    def __init__(self, policy: Policy, prompt: Prompt, num: int, say: Say | None) -> None:
        self._policy, self._prompt, self._say = policy, prompt, say
        self._ids: list[list[int]] = [[] for _ in range(num)]
        self._said = 0
        self._hold = max((len(stop) - 1 for stop in prompt.stops), default=0)
        """Characters at the end in which such a sequence may have begun."""

    def watch(self, task: int, number: int, chosen: int) -> bool:
        """Take a token; whether that answer ends."""
        self._ids[number].append(chosen)
        text = self._policy.decode(self._ids[number])
        cut = self._prompt.cut(text)
        if number == 0 and self._say and cut == text:
            whole = text.rstrip(_BROKEN)
            return self._tell(whole[: len(whole) - self._hold])
        return cut != text

    def end(self, answer: Completion) -> None:
        """Say what was held back."""
        if self._say:
            self._tell(self._prompt.cut(answer.text))

    def _tell(self, text: str) -> bool:
        piece, self._said = text[self._said :], max(self._said, len(text))
        return bool(self._say and piece and self._say(piece))
