"""A small swarm with questions that cost nothing: what admission, pool and sampling are tried on."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from waggle.core.codec import digest, encode
from waggle.core.errors import TaskError
from waggle.core.keys import Key
from waggle.core.rng import rng_for, seed_for
from waggle.core.sealing import charter_digest, seal
from waggle.core.types import (
    Admission,
    Body,
    Charter,
    Completion,
    Experience,
    Family,
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
from waggle.swarm.admission import View
from waggle.swarm.charter import new_charter
from waggle.swarm.seen import Seen

NOW_MS = 1_700_000_000_000
ME, ALICE, BOB, EVE = (Key.from_seed(name * 16) for name in (b"me", b"al", b"bo", b"ev"))
SUMS = Family("chain_sum", "reasoning-gym", '{"max_terms":2}', "0.1.25", "reasoning-gym", 3, "", 64)
WORDS = Family("word_sorting", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 3, "", 64)
CHARTER = new_charter(ALICE, "bees", [SUMS, WORDS], created_ms=5)
CHARTER_ID = charter_digest(CHARTER)
TOKENIZER = b"t" * 32
EOS = 0
COMMON = b"common"
replace = msgspec.structs.replace


def stream_seed(author: bytes, epoch: int) -> int:
    return seed_for("stream", author, epoch)


def is_drawn(ref: TaskRef, author: bytes) -> bool:
    return ref.index < 4096 and ref.seed in (stream_seed(author, ref.epoch), stream_seed(COMMON, ref.epoch))


def regenerate(ref: TaskRef) -> Task:
    if ref.index % 97 == 96:
        raise TaskError("this question cannot be made")
    question = hashlib.sha256(f"{ref.env} {ref.seed} {ref.index}".encode()).digest()
    return Task(ref, (Message("user", f"{ref.index} + 4 ="),), "reasoning-gym", "7", question, 64)


def is_train(question: bytes) -> bool:
    return question[0] >= 16


def spells(completion: Completion) -> bool:
    """Tokens of this world are the bytes of the text, and `EOS` where the model stopped."""
    assert completion.tokens is not None
    ids = list(completion.tokens.ids)
    if (ids[-1] == EOS) != (completion.finish == "stop"):
        return False
    return [*completion.text.encode()] == (ids[:-1] if ids[-1] == EOS else ids)


def train_index(author: Key, number: int, epoch: int = 0) -> int:
    """The author's `number`-th draw that may be trained on."""
    for index in range(4096):
        ref = TaskRef(SUMS.env, digest(SUMS), stream_seed(author.id, epoch), epoch, index)
        if index % 97 != 96 and is_train(regenerate(ref).question):
            if number == 0:
                return index
            number -= 1
    raise AssertionError("an epoch has enough draws")


def completion(text: str, seed: int = 0, finish: Any = "stop", tokenizer: bytes = TOKENIZER) -> Completion:
    ids = (*text.encode(), EOS) if finish == "stop" else tuple(text.encode())
    logprobs = -rng_for("logprobs", seed, text).exponential(1.0, len(ids))
    return Completion((Text(text),), finish, Tokens(tokenizer, ids, logprobs.astype("<f4").tobytes()))


def answers(seed: int, size: int = 8) -> tuple[Completion, ...]:
    rng = rng_for("answers", seed)
    return tuple(completion(f"answer {number} is {rng.integers(10**6)}", seed) for number in range(size))


def body(author: Key = ALICE, number: int = 0, round: int = 3, **changes: Any) -> Body:
    ref = TaskRef(SUMS.env, digest(SUMS), stream_seed(author.id, 0), 0, train_index(author, number))
    made = Body(ref, PolicyRef("tiny", b"w" * 32, 3), Sampling(max_tokens=64), answers(number), author.id, round)
    return replace(made, **changes)


def sealed(
    *bodies: Body, author: Key = ALICE, created_ms: int = NOW_MS, charter: bytes = CHARTER_ID
) -> list[Experience]:
    return seal(author, charter, bodies[0].round, created_ms, bodies)


def sent(*bodies: Body, author: Key = ALICE, created_ms: int = NOW_MS, charter: bytes = CHARTER_ID) -> list[bytes]:
    return [encode(experience) for experience in sealed(*bodies, author=author, created_ms=created_ms, charter=charter)]


def view(charter: Charter = CHARTER, seen: Seen | None = None, **changes: Any) -> View:
    fields: dict[str, Any] = {
        "charter": charter,
        "me": ME.id,
        "regenerate": regenerate,
        "is_drawn": is_drawn,
        "is_train": is_train,
        "tokenizer": TOKENIZER,
        "spells": spells,
        "seen": Seen() if seen is None else seen,
    }
    return View(**(fields | changes))


def with_rules(**rules: int) -> Charter:
    """The charter with other rules of admission."""
    return new_charter(ALICE, "bees", [SUMS, WORDS], created_ms=5, admission=Admission(**rules))


def group(number: int, rewards: Sequence[float | None] = (0.0, 1.0), author: bytes = ALICE.id) -> Group:
    """A graded group, for what comes after admission."""
    rollouts = tuple(Rollout(Completion((Text("7"),), "stop"), Verdict(reward)) for reward in rewards)
    ref = TaskRef(SUMS.env, digest(SUMS), 1, 0, number)
    task = Task(ref, (Message("user", "3 + 4 ="),), "reasoning-gym", "7", hashlib.sha256(b"%d" % number).digest(), 8)
    group_id = hashlib.sha256(author + b"%d" % number).digest()
    return Group(task, PolicyRef("tiny", b"w" * 32, 0), Sampling(), rollouts, author, 0, group_id)


def rng(*purpose: str | int) -> np.random.Generator:
    return rng_for("test", *purpose)


Change = Callable[[Body], Body]
