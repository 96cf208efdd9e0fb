"""Vectors of experience: trees, a sealed round and how it travels, batches."""

from typing import Any

from msgspec.structs import replace

from conformance.world import World, batch, ids_of, made_up, sealed, stored, with_tokens
from waggle.core import merkle
from waggle.core.codec import encode
from waggle.core.sealing import announce, announcement_head, answers_of
from waggle.core.types import Completion, Text
from waggle.net.transport import message_id
from waggle.node.exchange import Pull


def trees(world: World) -> Any:
    rows = []
    for size in (1, 2, 3, 5, 8, 11):
        leaves = [made_up(number) for number in range(size)]
        paths = [[one.hex() for one in merkle.path(leaves, index)] for index in range(size)]
        rows.append({"leaves": [leaf.hex() for leaf in leaves], "root": merkle.root(leaves).hex(), "paths": paths})
    leaves = [made_up(number) for number in range(5)]
    good = [one.hex() for one in merkle.path(leaves, 4)]
    other = [one.hex() for one in merkle.path(leaves, 0)]
    bad = [(4, 5, []), (4, 5, other), (5, 5, good), (4, 6, good[:1] * 3), (0, 1, good)]
    return {"good": rows, "bad": [{"index": i, "size": size, "path": path} for i, size, path in bad]}


def rounds(world: World) -> Any:
    cut = with_tokens("12", "length")
    bodies = [
        world.body(number=0),
        world.body(number=1, completions=(with_tokens("3"), cut, Completion((Text("a"), Text("b")), "stop"))),
        world.body(number=2, completions=(Completion((), "stop"), Completion((Text(""),), "length"))),
    ]
    made = sealed(world, bodies)
    news = announce(world.id, made)
    ids = tuple(ids_of(bodies))
    pull, answers = encode(Pull(world.id, (made_up(9), *ids))), [answers_of(n + 1, b) for n, b in enumerate(bodies)]
    bad = [
        (replace(answers[0], number=2), "another body's number"),
        (replace(answers[0], number=0), "what was asked for there is not announced"),
        (replace(answers[0], parts=("9", *answers[0].parts[1:])), "another answer"),
        (replace(answers[1], cut=()), "an answer that was cut off, as if it were not"),
        (replace(answers[1], tokens=answers[1].tokens[:2]), "columns that do not fit"),
    ]
    return {
        "bodies": [{"hex": encode(body).hex(), "digest": one.hex()} for body, one in zip(bodies, ids, strict=True)],
        "head": announcement_head(news).hex(),
        "experiences": [encode(one).hex() for one in made],
        "announcement": encode(news).hex(),
        "message_id": message_id(world.id, encode(news)).hex(),
        "pull": pull.hex(),
        "answers": [encode(one).hex() for one in answers],
        "wrong_answers": [{"hex": encode(one).hex(), "why": why} for one, why in bad],
        "pull_reply": batch([encode(one) for one in answers]).hex(),
        "recent_reply": batch([encode(news)]).hex(),
    }


def batches(world: World) -> Any:
    content = b"\0\0\0\x01a\0\0\0\x02bc"
    rows = [
        (stored(content), 2, "good"),
        (stored(b""), 0, "good"),
        (stored(content), 1, "too-many"),
        (stored(content[:-1]), 2, "framing"),
        (stored(content + b"\0\0"), 3, "framing"),
        (stored(content) + b"\0", 2, "compression"),
        (b"junk", 2, "compression"),
        (b"\x28\xb5\x2f\xfd\xa0" + (2**23 + 1).to_bytes(4, "little") + stored(content)[9:], 2, "too-large"),
        (b"\x28\xb5\x2f\xfd\x00\x58" + stored(content)[9:], 2, "too-large"),
    ]
    return [{"hex": data.hex(), "most": most, "verdict": verdict} for data, most, verdict in rows]
