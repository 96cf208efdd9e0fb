"""Does a gain cost something elsewhere? Families that were not trained on, prompts put otherwise, and plain text.

A model that has learned to answer one way of asking, or has forgotten how to write, looks fine on the questions that
it was trained for. None of these steers anything.
"""

import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import torch
from msgspec.structs import replace
from torch.nn.functional import cross_entropy

from waggle.core.rng import rng_for
from waggle.core.types import Charter, Family, Message, Task
from waggle.policy.logprobs import inner_and_head
from waggle.policy.policy import Policy
from waggle.tasks.families import family

UNSEEN = 25
"""Questions of each family that was not trained on."""
_WINDOW, _CHUNK = 1024, 128
_GREETING = "Hello! Thank you for your help so far. Here is the next one.\n"


def unseen_families(charter: Charter) -> list[Family]:
    """Families of several kinds with short answers, less those whose environment the charter has."""
    found = [
        family("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),
        family("gcd", {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 99}, max_tokens=6),
        family("letter_counting", {"min_words": 2, "max_words": 4}, max_tokens=6),
        family("spell_backward", {"min_word_len": 3, "max_word_len": 5}, max_tokens=12),
    ]
    known = {one.env for one in charter.families}
    return [one for one in found if one.env not in known]


def _reordered(examples: list[list[Message]], last: Message, task: Task) -> list[Message]:
    order = rng_for("perturbed", task.question).permutation(len(examples)).tolist()
    return [message for i in order for message in examples[i]] + [last]


def _fewer(examples: list[list[Message]], last: Message, task: Task) -> list[Message]:
    return [message for example in examples[1:] for message in example] + [last]


def _greeted(examples: list[list[Message]], last: Message, task: Task) -> list[Message]:
    greeted = replace(last, content=_GREETING + last.content)
    return [message for example in examples for message in example] + [greeted]


PERTURBED: dict[str, Callable[[list[list[Message]], Message, Task], list[Message]]] = {
    "examples in another order": _reordered,
    "one example fewer": _fewer,
    "a greeting before the question": _greeted,
}


def perturbed(task: Task, how: str) -> Task:
    """The same question, put otherwise. Example: `perturbed(task, "one example fewer")`."""
    system = [message for message in task.prompt[:1] if message.role == "system"]
    turns = list(task.prompt[len(system) :])
    examples = [turns[at : at + 2] for at in range(0, len(turns) - 1, 2)]
    return replace(task, prompt=(*system, *PERTURBED[how](examples, turns[-1], task)))


def prose() -> str:
    """A text that comes with the program: a story, an explanation, a letter, some code."""
    return files("waggle.node").joinpath("prose.txt").read_text("utf-8")


@torch.inference_mode()
def bits_per_byte(policy: Policy, text: str) -> float:
    """How badly a model predicts a text, in bits for each byte of UTF-8: comparable between tokenizers.

    Longer texts are read in windows of `_WINDOW` tokens, whose first token is given away.
    """
    ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    nats, size = 0.0, min(_WINDOW, policy.context)
    for first in range(0, len(ids) - 1, size - 1):
        nats += _nats(policy.model, torch.tensor(ids[first : first + size], device=policy.device))
    return nats / math.log(2) / len(text.encode())


def _nats(model: Any, ids_T: torch.Tensor) -> float:
    """Negative log-probability of all tokens but the first."""
    inner, head = inner_and_head(model)
    hidden_TD = inner(input_ids=ids_T[None], use_cache=False).last_hidden_state[0]
    nats = 0.0
    for first in range(0, len(ids_T) - 1, _CHUNK):
        targets = ids_T[first + 1 : first + 1 + _CHUNK]
        logits = head(hidden_TD[first : first + len(targets)]).float()
        nats += float(cross_entropy(logits, targets, reduction="sum"))
    return nats
