"""Vectors of admission: experience and announcements, and what a receiver says of each."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from conformance.world import ALICE, BOB, ME, NOW_MS, World, made_up, sealed, with_tokens
from waggle.core import merkle
from waggle.core.codec import encode
from waggle.core.keys import Key
from waggle.core.sealing import announce, announcement_head
from waggle.core.types import Announcement, Blob, Body, Completion, Experience, Sampling, Seal, Text

Case = tuple[Experience | bytes, str, str]
TEXTS = (
    "It is seven, since three and four are seven.",
    "It is eight, I am sure of it.",
    "Nobody can know such a thing.",
)


def admission(world: World) -> Any:
    """Each stands for itself, unless it comes after others, which are admitted."""
    rows = [
        _row(data, reason, why, ()) for data, reason, why in (*_formal(world), *_of_authors(world), *_of_answers(world))
    ]
    return rows + [_row(data, reason, why, after) for data, reason, why, after in _in_turn(world)]


def _row(made: Experience | bytes, reason: str, why: str, after: Sequence[Experience]) -> dict[str, Any]:
    data = made if isinstance(made, bytes) else encode(made)
    return {"after": [encode(one).hex() for one in after], "hex": data.hex(), "verdict": reason, "why": why}


def _one(world: World, body: Body, key: Key = ALICE, created_ms: int = NOW_MS) -> Experience:
    return sealed(world, [body], key, created_ms)[0]


def _formal(world: World) -> list[Case]:
    good = _one(world, world.body())
    data = encode(good)
    long = tuple(Completion((Text(str(n) * 150),), "stop", with_tokens(str(n) * 150).tokens) for n in range(8))
    return [
        (data, "admitted", "a group of four answers"),
        (sealed(world, [world.body(number=n) for n in range(3)])[2], "admitted", "the third of a round"),
        (b"\x02" + data[1:], "version", "another version byte"),
        (data[:-1], "schema", "cut off"),
        (data.replace(b"\xa4stop", b"\xd9\x04stop", 1), "not-canonical", "a text in a longer form"),
        (_one(world, world.body(completions=long)), "too-large", "more than 4096 + 1024 bytes"),
    ]


def _of_authors(world: World) -> list[Case]:
    body, bob = world.body(), world.body(BOB)
    good = _one(world, body)
    mine = replace(body, author=ME.id, task=world.ref(ME, 0))
    sizes = [_one(world, replace(body, round=n), created_ms=NOW_MS - n) for n in (8, 9)]
    held_out = [world.body(task=world.ref(ALICE, 0, kind)) for kind in ("steer", "report", "shots")]
    return [
        (_one(world, mine, ME), "own", "what I wrote myself"),
        (_one(world, body, BOB), "signature", "signed by somebody else"),
        (replace(good, seal=replace(good.seal, created_ms=NOW_MS - 1)), "signature", "another time than was signed"),
        (replace(good, seal=replace(good.seal, path=(made_up(1),))), "signature", "a path that fits no round of one"),
        (replace(good, body=replace(body, round=4)), "signature", "another round than was signed"),
        (_one(world, body, created_ms=NOW_MS - 3_600_000), "admitted", "an hour old"),
        (_one(world, body, created_ms=NOW_MS - 3_600_001), "stale", "more than an hour old"),
        (_one(world, body, created_ms=NOW_MS + 600_000), "admitted", "600 s ahead"),
        (_one(world, body, created_ms=NOW_MS + 600_001), "future", "more than 600 s ahead"),
        (_of_many(world, body, 256), "admitted", "of a round of 256 groups"),
        (_of_many(world, body, 257), "quota", "of a round of 257 groups"),
        (sizes[0], "admitted", "another round"),
        (_one(world, replace(body, task=replace(body.task, env="products"))), "family", "another environment"),
        (_one(world, replace(body, task=replace(body.task, config=made_up(2)))), "family", "an unknown family"),
        (_one(world, replace(body, task=bob.task)), "not-drawn", "somebody else's draw"),
        (_one(world, replace(body, task=replace(body.task, index=4096))), "not-drawn", "no draw of an epoch"),
        (_one(world, replace(bob, task=world.common_ref()), BOB), "admitted", "a draw of the common stream"),
        *[
            (_one(world, one), "held-out", f"a question of the bucket {kind}")
            for one, kind in zip(held_out, ("steer", "report", "shots"), strict=True)
        ],
    ]


def _of_many(world: World, body: Body, size: int) -> Experience:
    """A body as the last of a round of many."""
    from waggle.core.codec import digest

    leaves = [*(made_up(n) for n in range(size - 1)), digest(body)]
    numbers = b"".join(n.to_bytes(8, "big") for n in (body.round, NOW_MS, size))
    signature = ALICE.sign(b"waggle/round/1\0" + ALICE.id + world.id + numbers + merkle.root(leaves))
    return Experience(body, Seal(NOW_MS, size, size - 1, merkle.path(leaves, size - 1), signature))


def _of_answers(world: World) -> list[Case]:
    body = world.body()
    right, wrong = body.completions[:2]

    def with_answers(*completions: Completion, **changes: Any) -> Experience:
        return _one(world, replace(body, completions=completions, **changes))

    def at(temperature: float) -> Sampling:
        return replace(body.sampling, temperature=temperature)

    picture = Completion((Text("7"), Blob(made_up(1), "image/png", 8192)), "stop")
    stated = with_tokens("7")
    return [
        (with_answers(right), "group-size", "one answer"),
        (with_answers(*[right, wrong] * 4), "admitted", "eight answers"),
        (with_answers(*[right] * 9), "group-size", "nine answers"),
        (with_answers(right, wrong, sampling=at(0.04)), "sampling", "temperature 0.04"),
        (with_answers(right, wrong, sampling=at(4.5)), "sampling", "temperature 4.5"),
        (with_answers(right, picture), "blob", "an answer with a picture"),
        (with_answers(right, Completion((Text("7" * 201),), "stop")), "too-long", "201 characters"),
        (with_answers(stated, stated), "admitted", "with ids of my tokenizer"),
        (with_answers(right, with_tokens("1234567", "length")), "admitted", "an answer that was cut off, with ids"),
        (with_answers(right, with_tokens("12345678")), "tokens", "nine ids where at most eight were sampled"),
        (with_answers(right, with_tokens("7", logprob=-31.0)), "logprobs", "a token that nobody samples"),
        (with_answers(right, replace(stated, parts=(Text("8"),))), "tokens", "ids that do not spell the text"),
        (with_answers(right, replace(stated, finish="length")), "tokens", "an end where there is none"),
        (
            with_answers(right, replace(with_tokens("7", tokenizer=made_up(3)), parts=(Text("8"),))),
            "admitted",
            "ids of another tokenizer",
        ),
    ]


def _in_turn(world: World) -> list[tuple[Experience, str, str, list[Experience]]]:
    first, later = _one(world, world.body()), NOW_MS + 1000
    again = world.body(policy=replace(world.body().policy, step=5))
    told = tuple(Completion((Text(text),), "stop") for text in TEXTS)
    common = world.common_ref()
    alice = replace(world.body(task=common), completions=told)
    bob = replace(world.body(BOB, task=common), completions=told[::-1])
    short = replace(bob, completions=world.body(task=common).completions)
    ahead = [world.body(task=world.ref(ALICE, 0, epoch=epoch)) for epoch in (1, 2, 5)]
    full = [_one(world, world.body(number=n)) for n in range(1)]
    return [
        (first, "duplicate", "the same once more", [first]),
        (_one(world, world.body(), created_ms=later), "duplicate", "the same, sealed once more", [first]),
        (_one(world, again, created_ms=later), "repeat", "the same draw once more", [first]),
        (_one(world, world.body(number=1), created_ms=later), "admitted", "the next draw", [first]),
        (_one(world, ahead[0], created_ms=later), "admitted", "the next epoch", full),
        (_one(world, ahead[1], created_ms=later), "epoch", "two epochs in a second", full),
        (_one(world, ahead[2], created_ms=NOW_MS + 40_000), "admitted", "five epochs in forty seconds", full),
        (_one(world, bob, BOB), "copy", "another author's answers to the same question", [_one(world, alice)]),
        (_one(world, short, BOB), "admitted", "short answers that coincide", [_one(world, world.body(task=common))]),
    ]


def announcements(world: World) -> Any:
    """Who sent it, and what a receiver says of it; `signature` is told when something of it is wanted."""
    good = announce(world.id, sealed(world, [world.body(number=n) for n in range(2)]))
    mine = announce(world.id, sealed(world, [world.body(ME)], ME))
    rows = [
        (good, ALICE, "good", "two groups"),
        (
            replace(good, entries=(replace(good.entries[0], size_bytes=1), good.entries[1])),
            ALICE,
            "good",
            "a wrong hint",
        ),
        (replace(good, charter=made_up(4)), ALICE, "other-charter", "of another swarm"),
        (mine, ME, "own", "what I announced myself"),
        (good, BOB, "signature", "passed on by somebody"),
        (_signed(replace(good, entries=good.entries[:1] * 2)), ALICE, "duplicate", "one group twice"),
        (_signed(replace(good, created_ms=NOW_MS - 3_600_001)), ALICE, "stale", "more than an hour old"),
        (_signed(replace(good, created_ms=NOW_MS + 600_001)), ALICE, "future", "more than 600 s ahead"),
        (replace(good, round=4), ALICE, "signature", "another round than was signed"),
        (replace(good, entries=good.entries[::-1]), ALICE, "signature", "in another order than was signed"),
    ]
    return [
        {"hex": encode(news).hex(), "sender": key.id.hex(), "verdict": verdict, "why": why}
        for news, key, verdict, why in rows
    ]


def _signed(news: Announcement) -> Announcement:
    return replace(news, signature=ALICE.sign(announcement_head(news)))
