"""Talking to a model: a conversation that grows, answered by the decoding loop that training uses.

The sampler answers tasks, so a conversation is asked as one: its prompt is all messages so far. When the context
is full the oldest exchanges are forgotten, and the caller is told how many messages that were.
"""

from dataclasses import dataclass
from pathlib import Path

from waggle.core.codec import digest, digest_bytes
from waggle.core.errors import ModelError
from waggle.core.types import Message, Sampling, Task, TaskRef
from waggle.node.runfolder import RunFolder, node_folders
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate

_REF = TaskRef("chat", digest_bytes("Family", b"chat"), 0, 0, 0)


def model_of(name: str) -> str:
    """What to load: of a run folder the model of its first node that has one; anything else is a model's own name.

    Raises:
        RunError: a run folder that cannot be read.
        ModelError: a run without a model yet, or a checkpoint, which holds no whole model.
    """
    path = Path(name)
    if (path / "state.bin").exists():
        run = path.resolve().parent.parent
        raise ModelError(f"{name} is a checkpoint to resume from; the model to talk to is {run / 'model'}")
    if not (path / "run.json").exists():
        return name
    models = [folder.model for folder in map(RunFolder, node_folders(path)) if folder.model.exists()]
    if not models:
        raise ModelError(f"no node of {name} has exported a model yet; let it play until its first evaluation")
    return str(models[0])


@dataclass(frozen=True)
class Answer:
    """What came back. `cut_off` where it reached the longest length; `forgotten` messages left the conversation."""

    text: str
    cut_off: bool
    forgotten: int


class Conversation:
    """Messages and their answers. Example: `Conversation(load("tiny")).say("hello").text`.

    Args:
        policy: who answers.
        max_tokens: longest answer.
        temperature: of the answers; 0 is greedy.
        seed: other answers for other numbers.
    """

    def __init__(self, policy: Policy, max_tokens: int = 128, temperature: float = 0.7, seed: int = 0) -> None:
        self.policy = policy
        self.messages: list[Message] = []
        self._max_tokens = max_tokens
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)

    def say(self, text: str) -> Answer:
        """Answer a message. Where that fails or is interrupted, the conversation is as it was.

        Raises:
            ModelError: the message alone leaves no room for an answer, or the model's scores are not numbers.
        """
        asked = [*self.messages, Message("user", text)]
        kept = self._fitting(asked)
        task = Task(_REF, tuple(kept), "exact", "", _content(kept), self._max_tokens)
        answer = generate(self.policy, [task], 1, self._sampling)[0][0]
        self.messages = [*kept, Message("assistant", answer.text)]
        return Answer(answer.text, answer.finish == "length", len(asked) - len(kept))

    def _fitting(self, messages: list[Message]) -> list[Message]:
        """The newest messages that leave room for an answer of half the wanted length at least."""
        room = self.policy.context - min(self._max_tokens, self.policy.context // 2)
        while (size := len(self.policy.encode_prompt(messages))) > room:
            if len(messages) < 3:
                raise ModelError(
                    f"this message has {size} tokens and {self.policy.name} reads at most {room} before it answers; "
                    "shorten it"
                )
            messages = messages[2:]
        return messages


def _content(messages: list[Message]) -> bytes:
    return digest_bytes("Chat", b"".join(map(digest, messages)))
