"""What the tests of the policy share: questions, oracles, the model that comes with the package."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from waggle.core.errors import ModelError
from waggle.core.types import Completion, Message, Task, TaskRef
from waggle.policy.bundled import NAME
from waggle.policy.load import load
from waggle.policy.policy import Policy

SHOTS = ("2 + 2 =", "4", "3 + 5 =", "8")


def ask(question: str, family: str = "sum", shots: Sequence[str] = SHOTS, max_tokens: int = 12) -> Task:
    """A task that asks this after alternating turns of user and assistant."""
    turns = [Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(shots)]
    config = hashlib.sha256(family.encode()).digest()
    digest = hashlib.sha256(question.encode()).digest()
    ref = TaskRef(family, config, 0, 0, 0)
    return Task(ref, (*turns, Message("user", question)), "exact", "", digest, max_tokens)


def ragged() -> list[Task]:
    """Questions of several families, prompt lengths and limits."""
    return [
        ask("3 + 4 ="),
        ask("12 + 30 + 4 =", max_tokens=5),
        ask("Name a colour.", "words", (), max_tokens=40),
        ask("7 + 1 ="),
        ask("Name a very big animal.", "words", (), max_tokens=40),
        ask("spell bee", "spell", ("spell ox", "o x"), max_tokens=20),
    ]


def plain_logprobs(policy: Policy, task: Task, completion: Completion, temperature: float = 1.0) -> np.ndarray:
    """The oracle: one row without padding, cache or packing."""
    assert completion.tokens is not None
    prompt, ids = policy.encode_prompt(task.prompt), completion.tokens.ids
    with torch.no_grad():
        logits_TV = policy.model(input_ids=torch.tensor([prompt + ids]), use_cache=False).logits[
            0, len(prompt) - 1 : -1
        ]
    logprobs_TV = (logits_TV.double() / temperature).log_softmax(-1)
    return logprobs_TV.gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()


def generated(policy: Policy, task: Task) -> tuple[int, ...]:
    """The oracle for decoding: what `transformers` answers greedily."""
    prompt = torch.tensor([policy.encode_prompt(task.prompt)])
    out = policy.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=task.max_tokens,
        do_sample=False,
        eos_token_id=list(policy.stop_ids),
        pad_token_id=policy.stop_ids[0],
    )
    return tuple(out[0, prompt.shape[1] :].tolist())


def bundled_policy() -> Policy:
    """The bundled model; skips where its package is not installed."""
    try:
        return load(NAME)
    except ModelError as error:
        pytest.skip(str(error))
