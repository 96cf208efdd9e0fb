"""Experience as an enemy would send it, and a second opinion on what was let in.

`Enemy` makes frames: honest rounds in between, and every kind of damage: bits, lengths, types, values, proofs,
questions, answers, times, repetitions, bombs. Half of the damaged bodies are signed properly, by a peer whose
key the enemy owns, so that they get past the signature. `second_opinion` judges what was admitted from the
bytes alone, with nothing of `waggle.swarm` and without typed decoding.
"""

import hashlib
import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.swarm import world
from tests.swarm.world import ALICE, BOB, CHARTER_ID, EVE, NOW_MS, SUMS, WORDS
from waggle.core.codec import digest, digest_bytes, encode, pack
from waggle.core.keys import Key
from waggle.core.rng import rng_for
from waggle.core.sealing import announce, seal
from waggle.core.types import Body, PolicyRef, Sampling, TaskRef

Raw = list[Any]
CONFIGS = {digest(SUMS): SUMS.env, digest(WORDS): WORDS.env}
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    2**53,
    2**53 + 1,
    2**64 - 1,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    1e-308,
    "",
    "x",
    "\x00",
    "é" * 500,
    "y" * 120_000,
    b"",
    b"\xff" * 31,
    b"\xff" * 32,
    b"\xff" * 64,
    bytes(70_000),
    [],
    [[]],
    {},
    {"a": [1]},
    [0] * 70_000,
]


def packed(raw: Any) -> bytes:
    """msgpack of plain values after the version byte, with no opinion on their types."""
    return b"\x01" + msgspec.msgpack.encode(raw)


def plain(noun: msgspec.Struct) -> Raw:
    """A noun as plain lists."""
    raw: Raw = msgspec.msgpack.decode(encode(noun)[1:])
    return raw


def head(author: bytes, charter: bytes, round: int, created_ms: int, size: int, root: bytes) -> bytes:
    """What a seal signs, written down a second time."""
    return b"waggle/round/1\0" + author + charter + struct.pack(">QQQ", round, created_ms, size) + root


def leaf(body: bytes) -> bytes:
    return hashlib.sha256(b"\0" + digest_bytes("Body", body)).digest()


def sign_alone(key: Key, body: Raw, created_ms: int, charter: bytes = CHARTER_ID) -> bytes:
    """A round of one body, signed by `key` whatever the body is."""
    data = packed(body)
    round = body[5] if len(body) > 5 and isinstance(body[5], int) and 0 <= body[5] < 2**64 else 0
    signature = key.sign(head(key.id, charter, round, created_ms, 1, leaf(data)))
    return packed([body, [created_ms, 1, 0, [], signature]])


class Enemy:
    """Frames to be received. Example: `Enemy(seed=1).frame()`."""

    def __init__(self, seed: int) -> None:
        self.rng = rng_for("hostile", seed)
        self.now_ms = NOW_MS
        self.sent: list[bytes] = []
        self._round = 0

    def pick(self, options: list[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def frame(self) -> bytes:
        """A batch as it would arrive: mostly whole, sometimes broken."""
        self.now_ms += 700
        self._round += 1
        items = [item for _ in range(int(self.rng.integers(1, 7))) for item in self.pick(KINDS)(self)]
        good = pack(b"".join(len(item).to_bytes(4, "big") + item for item in items))
        return good if self.rng.random() < 0.8 else self.pick(FRAMES)(self, good)

    def honest(self) -> list[bytes]:
        """A signed round of up to four groups."""
        author = self.pick([ALICE, BOB])
        bodies = [self.body(author) for _ in range(int(self.rng.integers(1, 5)))]
        data = [encode(experience) for experience in seal(author, CHARTER_ID, self._round, self.now_ms, bodies)]
        self.sent = (self.sent + data)[-50:]
        return data

    def body(self, author: Key) -> Body:
        family, epoch = self.pick([SUMS, WORDS]), self._round // 400
        index = int(self.rng.integers(4096))
        stream = author.id if self.rng.random() < 0.7 else world.COMMON
        ref = TaskRef(family.env, digest(family), world.stream_seed(stream, epoch), epoch, index)
        answers = world.answers(int(self.rng.integers(2**40)), self.pick([2, 4, 8]))
        return Body(ref, PolicyRef("tiny", b"w" * 32, 3), Sampling(max_tokens=64), answers, author.id, self._round)

    def replay(self) -> list[bytes]:
        return [self.pick(self.sent)] if self.sent else []

    def copy(self) -> list[bytes]:
        """Another's group under my name and signature; its answers may pass where its draw does."""
        body: Raw = msgspec.msgpack.decode((self.sent or self.honest())[-1][1:])[0]
        body[4] = EVE.id
        body[3] = body[3][::-1]
        return [sign_alone(EVE, body, self.now_ms)]

    def announcement(self) -> tuple[bytes, bytes]:
        """Who sends it, and a round's announcement, mostly damaged."""
        author = self.pick([ALICE, BOB, EVE, world.ME])
        bodies = [self.body(author) for _ in range(self.pick([1, 2, 6, 30]))]
        created_ms = self.now_ms + self.pick([0, 0, 0, -3_700_000, 700_000])
        charter = self.pick([CHARTER_ID, CHARTER_ID, CHARTER_ID, b"d" * 32])
        raw = plain(announce(charter, seal(author, charter, self._round, created_ms, bodies)))
        if self.rng.random() < 0.5:
            self._spoil(raw)
        data = bytearray(packed(raw))
        if self.rng.random() < 0.2:
            data[int(self.rng.integers(len(data)))] ^= 1 << int(self.rng.integers(8))
        sender = EVE if self.rng.random() < 0.1 else author
        return sender.id, bytes(data)

    def bits(self) -> list[bytes]:
        data = bytearray(self.honest()[0])
        for _ in range(self.pick([1, 1, 2, 10])):
            data[int(self.rng.integers(len(data)))] ^= 1 << int(self.rng.integers(8))
        return [bytes(data)]

    def lengths(self) -> list[bytes]:
        data = self.honest()[0]
        cut = int(self.rng.integers(len(data)))
        other = self.pick(self.sent)
        return [
            self.pick([data[:cut], data[cut:], data + b"\0", data[:cut] + other[cut:], data * 3, b"", bytes(600_000)])
        ]

    def strange(self) -> list[bytes]:
        """One field of any depth replaced by something else, in the body (signed or not) or anywhere."""
        body = plain(self.body(EVE))
        self._spoil(body)
        if self.rng.random() < 0.5:
            return [sign_alone(EVE, body, self.now_ms)]
        whole: Raw = msgspec.msgpack.decode(self.honest()[0][1:])
        self._spoil(whole)
        return [packed(whole)]

    def _spoil(self, raw: Raw) -> None:
        at: Raw = raw
        while True:
            number = int(self.rng.integers(len(at)))
            inner = at[number]
            if isinstance(inner, list) and inner and self.rng.random() < 0.7:
                at = inner
                continue
            act = self.pick(["replace", "replace", "drop", "add", "swap"])
            if act == "replace":
                at[number] = self.pick(STRANGE)
            elif act == "drop":
                del at[number]
            elif act == "add":
                at.insert(number, self.pick(STRANGE))
            else:
                other = int(self.rng.integers(len(at)))
                at[number], at[other] = at[other], at[number]
            return

    def wrong(self) -> list[bytes]:
        """A well-formed body that breaks a rule, signed by its author."""
        raw = plain(self.body(EVE))
        created_ms, charter, key = self.now_ms, CHARTER_ID, EVE
        what = self.pick(
            ["time", "charter", "author", "seed", "epoch", "index", "config", "size", "hot", "own", *ANSWERS]
        )
        if what == "time":
            created_ms = self.now_ms + self.pick([-3_700_000, -(10**9), 700_000, 10**12])
        elif what == "charter":
            charter = b"d" * 32
        elif what == "author":
            key = self.pick([ALICE, BOB])
        elif what == "seed":
            raw[0][2] = self.pick([0, world.stream_seed(ALICE.id, 0), 2**53])
        elif what == "epoch":
            raw[0][3] = self.pick([1000, 2**53, 7])
            raw[0][2] = world.stream_seed(EVE.id, raw[0][3])
        elif what == "index":
            raw[0][4] = self.pick([96, 4096, 2**53])
        elif what == "config":
            raw[0][1] = b"c" * 32
        elif what == "size":
            raw[3] = self.pick([[], raw[3][:1], raw[3] * 9, raw[3] * 40])
        elif what == "hot":
            raw[2][0] = self.pick([0.0, 1e-300, 1e300, 5.0])
        elif what == "own":
            key, raw[4] = world.ME, world.ME.id
        elif what in ANSWERS:
            ANSWERS[what](self, self.pick(raw[3]))
        return [sign_alone(key, raw, created_ms, charter)]

    def proofs(self) -> list[bytes]:
        """Good bodies under proofs that are not theirs."""
        whole: Raw = msgspec.msgpack.decode(self.honest()[-1][1:])
        seal_raw = whole[1]
        number = int(self.rng.integers(5))
        seal_raw[number] = {
            0: seal_raw[0] + 1,
            1: self.pick([1, seal_raw[1] + 1, 4096]),
            2: seal_raw[2] + 1,
            3: self.pick([[], [bytes(32)] * 12, [*seal_raw[3][::-1], bytes(32)]]),
            4: self.pick([b"", bytes(64), EVE.sign(b"x"), seal_raw[4][::-1]]),
        }[number]
        return [packed(whole)]

    def flood(self) -> list[bytes]:
        """More of one round than anybody may send."""
        bodies = [self.body(EVE) for _ in range(40)]
        return [encode(experience) for experience in seal(EVE, CHARTER_ID, 1, self.now_ms, bodies)][:8]


def _tokens(answer: Raw, change: Callable[[Raw], None]) -> None:
    change(answer[2])


ANSWERS: dict[str, Callable[[Enemy, Raw], None]] = {
    "long": lambda enemy, answer: answer[0].append(["text", "z" * enemy.pick([4001, 99_999, 100_001])]),
    "blob": lambda enemy, answer: answer[0].append(["blob", b"b" * 32, "image/png", 9]),
    "parts": lambda enemy, answer: answer[0].extend([["text", ""]] * 17),
    "finish": lambda enemy, answer: answer.__setitem__(1, enemy.pick(["length", "tool", ""])),
    "spelling": lambda enemy, answer: _tokens(answer, lambda t: t[1].__setitem__(0, 5)),
    "many ids": lambda enemy, answer: _tokens(answer, lambda t: t[1].extend([7] * 100)),
    "no ids": lambda enemy, answer: answer.__setitem__(2, [world.TOKENIZER, [], b""]),
    "nan": lambda enemy, answer: _tokens(
        answer,
        lambda t: t.__setitem__(2, t[2][:-4] + struct.pack("<f", enemy.pick([math.nan, math.inf, -math.inf, 0.5]))),
    ),
    "unlikely": lambda enemy, answer: _tokens(answer, lambda t: t.__setitem__(2, t[2][:-4] + struct.pack("<f", -31.0))),
    "half logprobs": lambda enemy, answer: _tokens(answer, lambda t: t.__setitem__(2, t[2][:-3])),
}
KINDS: list[Callable[[Enemy], list[bytes]]] = [
    *[Enemy.honest] * 3,
    *[Enemy.replay] * 2,
    *[Enemy.copy] * 2,
    *[Enemy.bits] * 4,
    *[Enemy.lengths] * 3,
    *[Enemy.strange] * 8,
    *[Enemy.wrong] * 10,
    *[Enemy.proofs] * 3,
    Enemy.flood,
]
BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(64 << 20))
FRAMES: list[Callable[[Enemy, bytes], bytes]] = [
    lambda enemy, good: BOMB,
    lambda enemy, good: zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 5000),
    lambda enemy, good: good[: int(enemy.rng.integers(len(good)))],
    lambda enemy, good: good + b"x",
    lambda enemy, good: bytes(enemy.rng.integers(0, 256, 200, dtype="u1")),
    lambda enemy, good: pack(bytes(enemy.rng.integers(0, 256, 200, dtype="u1"))),
    lambda enemy, good: pack(bytes(4000)),
]


def second_opinion(data: bytes, now_ms: int) -> list[str]:
    """What is wrong with an experience that was admitted; nothing, if all is well."""
    body, (created_ms, size, index, path, signature) = msgspec.msgpack.decode(data[1:])
    (env, config, seed, epoch, draw), policy, sampling, answers, author, round = body
    node, first, last = leaf(packed(body)), 0, size
    turns = []
    while last - first > 1:
        half = first + 2 ** math.floor(math.log2(last - first - 1))
        turns.append(index < half)
        first, last = (first, half) if index < half else (half, last)
    for left, sibling in zip(reversed(turns), path, strict=True):
        node = hashlib.sha256(b"\1" + (node + sibling if left else sibling + node)).digest()
    Ed25519PublicKey.from_public_bytes(author).verify(
        signature, head(author, CHARTER_ID, round, created_ms, size, node)
    )
    streams = {world.stream_seed(author, epoch), world.stream_seed(world.COMMON, epoch)}
    question = hashlib.sha256(f"{env} {seed} {draw}".encode()).digest()
    faults = {
        "bytes": packed(msgspec.msgpack.decode(data[1:])) != data or len(data) > (1 << 18) + 1024,
        "place": index != first or not 1 <= size <= 256,
        "author": author == world.ME.id,
        "time": not -600_000 <= now_ms - created_ms <= 3_600_000,
        "family": CONFIGS.get(config) != env,
        "question": seed not in streams or draw >= 4096 or draw % 97 == 96 or question[0] < 16,
        "size": not 2 <= len(answers) <= 64,
        "sampling": not 0.05 <= sampling[0] <= 4 or not 0 < sampling[1] <= 1,
        "policy": not isinstance(policy[0], str) or len(policy[1]) != 32,
        "answers": any(_bad_answer(answer, sampling[3]) for answer in answers),
    }
    return [name for name, fault in faults.items() if fault]


def _bad_answer(answer: Raw, max_tokens: int) -> bool:
    parts, finish, tokens = answer
    text = "".join(part[1] for part in parts)
    if any(part[0] != "text" for part in parts) or len(text) > 4000 or finish not in ("stop", "length"):
        return True
    if tokens is None:
        return False
    tokenizer, ids, logprobs = tokens
    values = [value for (value,) in struct.iter_unpack("<f", logprobs)]
    if not 1 <= len(ids) <= max_tokens or any(not -30 <= value <= 1e-3 for value in values):
        return True
    spelled = [*text.encode()] + [0] * (finish == "stop")
    return bool(values and len(values) != len(ids)) or (
        tokenizer == world.TOKENIZER and (ids != spelled or len(ids) > 64)
    )
