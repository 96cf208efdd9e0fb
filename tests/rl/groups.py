"""Groups to learn from, made by hand or by a policy's own sampler."""

import numpy as np

from waggle.core.types import (
    Completion,
    Group,
    Message,
    PolicyRef,
    Rollout,
    Sampling,
    Task,
    TaskRef,
    Text,
    Tokens,
    Verdict,
)
from waggle.policy.policy import Policy
from waggle.policy.sampler import generate

ME, PEER = b"m" * 32, b"p" * 32
DIGEST = b"d" * 32


def task(question: str = "3 + 4 =", max_tokens: int = 8) -> Task:
    return Task(TaskRef("sum", DIGEST, 1, 0, 0), (Message("user", question),), "number", "7", DIGEST, max_tokens)


def group(*answers: tuple[Completion, float | None], author: bytes = ME, question: str = "3 + 4 =") -> Group:
    rollouts = tuple(Rollout(completion, Verdict(reward)) for completion, reward in answers)
    return Group(task(question), PolicyRef("tiny", DIGEST, 0), Sampling(), rollouts, author, 0, DIGEST)


def text(words: str, finish: str = "stop") -> Completion:
    return Completion((Text(words),), finish)  # type: ignore[arg-type]


def spelled(policy: Policy, words: str, finish: str = "stop", logprob: float | None = -0.5) -> Completion:
    """A completion with ids of the policy's tokenizer."""
    ids = policy.encode_text(words, finish)  # type: ignore[arg-type]
    old = b"" if logprob is None else np.full(len(ids), logprob, "<f4").tobytes()
    return Completion((Text(words),), finish, Tokens(policy.tokenizer_digest, ids, old))  # type: ignore[arg-type]


def sampled(policy: Policy, num: int = 4, author: bytes = ME, temperature: float = 1.0, seed: int = 0) -> list[Group]:
    """The policy's own answers to questions of unlike length; every other answer is right."""
    tasks = [task("1 + 1 ="), task("what is 12 + 30?", 5), task("say b")]
    answers = generate(policy, tasks, num, Sampling(temperature, seed=seed))
    rewards = [float(i % 2) for i in range(num)]
    return [
        group(*zip(completions, rewards, strict=True), author=author, question=asked.prompt[0].content)
        for asked, completions in zip(tasks, answers, strict=True)
    ]
