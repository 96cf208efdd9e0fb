"""The small swarm that the vectors are about: three keys, a charter with three families, a round of experience."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from waggle.core.blob import DiskBlobs
from waggle.core.codec import digest
from waggle.core.keys import Key
from waggle.core.sealing import seal
from waggle.core.types import (
    Admission,
    Body,
    Charter,
    Completion,
    Experience,
    Family,
    PolicyRef,
    Sampling,
    TaskRef,
    Text,
    Tokens,
)
from waggle.swarm.admission import View
from waggle.swarm.charter import new_charter
from waggle.tasks import gym
from waggle.tasks.families import family
from waggle.tasks.questions import bucket
from waggle.tasks.stream import Cursor, ref_at, ref_is_drawn
from waggle.tasks.taskset import Taskset

NOW_MS = 1_750_000_000_000
ALICE, BOB, ME = (Key.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
TOKENIZER = b"t" * 32
"""The vectors' tokenizer: ids are the bytes of the text, and 0 ends an answer."""
RULES = Admission(max_age_s=3600, max_group=8, max_completion_chars=200, max_body_bytes=4096, max_skew_s=600)
LETTERS = "".join(
    json.dumps({"question": f"Which letter is number {i}?", "answer": chr(97 + i % 26)}) + "\n" for i in range(110)
)
"""A file of questions."""


def families(files: Path) -> tuple[Family, ...]:
    """Two that ReasoningGYM makes, and one from a file, which is put into the folder."""
    two = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    few = {**two, "allow_negation": False, "allow_parentheses": False, "operators": ["+", "-"]}
    letters = DiskBlobs(files).put(LETTERS.encode()).hex()
    return (
        family("chain_sum", two, max_tokens=8, weight=4),
        family("basic_arithmetic", few, max_tokens=8, weight=2),
        Family("letters", "file", "{}", letters, "exact", 0, "", 8, "", 1),
    )


class World:
    """Everything that vectors share. `files` is an empty folder to use."""

    def __init__(self, files: Path) -> None:
        self.charter = new_charter(ALICE, "vectors", families(files), created_ms=NOW_MS, admission=RULES)
        self.taskset = Taskset(self.charter, files)
        self.id = self.taskset.digest
        self.closed = new_charter(
            ALICE, "members", self.charter.families, created_ms=NOW_MS, admission=RULES, members=[ALICE.id]
        )

    def ref(self, author: Key, number: int, kind: str = "train", epoch: int = 0) -> TaskRef:
        """The author's `number`-th draw of an epoch whose question is in a bucket, of the first family."""
        for index in range(gym.EPOCH):
            ref = ref_at(self.charter, self.id, author.id, Cursor(epoch, index))
            if ref.env == "chain_sum" and bucket(self.taskset.regenerate(ref).question) == kind:
                if number == 0:
                    return ref
                number -= 1
        raise AssertionError("an epoch has enough draws")

    def common_ref(self) -> TaskRef:
        """A draw that two authors have in common."""
        for index in range(gym.EPOCH):
            one, other = (ref_at(self.charter, self.id, key.id, Cursor(0, index)) for key in (ALICE, BOB))
            if one == other and bucket(self.taskset.regenerate(one).question) == "train":
                return one
        raise AssertionError("an epoch has common draws")

    def body(self, author: Key = ALICE, number: int = 0, **changes: Any) -> Body:
        """A group of four answers, two of which are right."""
        ref = changes.pop("task", None) or self.ref(author, number)
        truth = self.taskset.regenerate(ref).truth
        answers = tuple(Completion((Text(text),), "stop") for text in (truth, truth + "0", truth, "7 or 8"))
        made = Body(ref, PolicyRef("stub", b"w" * 32, 4), Sampling(1.0, 1.0, 0, 8, 5), answers, author.id, 3)
        return replace(made, **changes)

    def view(self, charter: Charter | None = None) -> View:
        """A receiver that has admitted nothing yet."""
        rules = charter or self.charter
        return View(
            charter=rules,
            me=ME.id,
            regenerate=self.taskset.regenerate,
            is_drawn=lambda ref, author: ref_is_drawn(self.charter, self.id, author, ref),
            is_train=lambda question: bucket(question) == "train",
            tokenizer=TOKENIZER,
            spells=spells,
        )


def with_tokens(text: str, finish: Any = "stop", logprob: float = -0.5, tokenizer: bytes = TOKENIZER) -> Completion:
    """An answer with ids of the vectors' tokenizer."""
    import numpy as np

    ids = (*text.encode(), *((0,) if finish == "stop" else ()))
    return Completion((Text(text),), finish, Tokens(tokenizer, ids, np.full(len(ids), logprob, "<f4").tobytes()))


def spells(completion: Completion) -> bool:
    """Whether ids of the vectors' tokenizer are those of the text."""
    ids = completion.tokens.ids if completion.tokens else ()
    return ids == (*completion.text.encode(), *((0,) if completion.finish == "stop" else ()))


def sealed(world: World, bodies: Sequence[Body], key: Key = ALICE, created_ms: int = NOW_MS) -> list[Experience]:
    """Bodies under the key's signature."""
    return seal(key, world.id, bodies[0].round, created_ms, bodies)


def stored(content: bytes) -> bytes:
    """A zstd frame (RFC 8878) that holds its content in raw blocks, and declares its size."""
    pieces = [content[start : start + (1 << 16)] for start in range(0, len(content), 1 << 16)] or [b""]
    heads = [
        (len(piece) << 3 | (number == len(pieces) - 1)).to_bytes(3, "little") for number, piece in enumerate(pieces)
    ]
    blocks = b"".join(head + piece for head, piece in zip(heads, pieces, strict=True))
    return b"\x28\xb5\x2f\xfd\xa0" + len(content).to_bytes(4, "little") + blocks


def batch(items: Sequence[bytes]) -> bytes:
    """A batch of these items."""
    return stored(b"".join(len(item).to_bytes(4, "big") + item for item in items))


def plain(value: Any) -> Any:
    """A noun's fields as JSON: bytes as text in hex behind `0x`."""
    if isinstance(value, msgspec.Struct):
        tag = type(value).__struct_config__.tag
        return [*([tag] if tag else []), *(plain(getattr(value, name)) for name in value.__struct_fields__)]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


def ids_of(bodies: Sequence[Body]) -> list[bytes]:
    """Their digests."""
    return [digest(body) for body in bodies]


def made_up(number: int) -> bytes:
    """32 bytes that are nothing in particular."""
    return hashlib.sha256(b"%d" % number).digest()
