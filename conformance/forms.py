"""Vectors of what is signed and sent: keys, nouns, charter, tickets, records, frames, requests, blobs."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from conformance.world import ALICE, BOB, ME, NOW_MS, TOKENIZER, World, batch, made_up, plain, stored, with_tokens
from waggle.core.blob import CHUNK_BYTES, Manifest, chunks_of, manifest_of
from waggle.core.codec import digest, encode
from waggle.core.keys import Key, peer_name
from waggle.core.sealing import charter_digest, found
from waggle.core.types import Blob, Charter, Completion, Noun, Sampling, Text, Ticket
from waggle.net.blobs import PROTO as BLOB
from waggle.net.blobs import Ask, Contents, Piece
from waggle.net.book import Record, signed
from waggle.net.frames import Bye, Frame, Have, Hello, Known, Ping, Push, Request, Said, Want, Welcome
from waggle.net.terms import Terms
from waggle.node.exchange import PULL, RECENT, Pull
from waggle.swarm.charter import is_member

pack = msgspec.msgpack.encode


def keys(world: World) -> Any:
    rows = []
    for key in (ALICE, BOB, ME):
        facts = {"seed": key.secret().hex(), "id": key.id.hex(), "name": peer_name(key.id)}
        rows.append({**facts, "message": b"hello".hex(), "signature": key.sign(b"hello").hex()})
    return rows


def nouns(world: World) -> Any:
    body = world.body()
    ref, sampling = body.task, Sampling(1.0, 1.0, 0, 64, 2**53)
    cut = Completion((Text("Zürich"), Blob(made_up(1), "image/png", 8192)), "length")
    fine: list[Noun] = [ref, sampling, cut, with_tokens("7"), body, world.charter.families[0], world.charter.admission]
    rows = [
        {"noun": type(n).__name__, "hex": encode(n).hex(), "fields": plain(n), "digest": digest(n).hex()} for n in fine
    ]
    good = encode(sampling)[1:]
    ok, text = [1.0, 1.0, 0, 64, 0], ["text", "7"]
    bad: list[tuple[str, bytes, str, str]] = [
        ("Sampling", b"\x02" + good, "version", "another version byte"),
        ("Sampling", b"", "version", "nothing at all"),
        ("Sampling", b"\x01" + pack(ok[:4]), "not-canonical", "a field too few, though it has a usual value"),
        ("Sampling", b"\x01" + pack([*ok, 0]), "schema", "a field too many"),
        ("Sampling", b"\x01" + pack(ok) + b"\0", "schema", "a byte behind the end"),
        ("Sampling", b"\x01" + pack([1, 1.0, 0, 64, 0]), "not-canonical", "an integer where a float belongs"),
        ("Sampling", b"\x01\x95\xca\x3f\x80\0\0" + pack(ok)[10:], "not-canonical", "a float of 32 bits"),
        ("Sampling", b"\x01" + pack(ok)[:-2] + b"\xcc\x40\0", "not-canonical", "an integer longer than it need be"),
        ("Sampling", b"\x01" + pack([float("nan"), 1.0, 0, 64, 0]), "schema", "a number that is none"),
        ("Sampling", b"\x01" + pack([1.0, 0.0, 0, 64, 0]), "schema", "top_p 0"),
        ("Sampling", b"\x01" + pack([1.0, 1.0, -1, 64, 0]), "schema", "a count below 0"),
        ("Sampling", b"\x01" + pack([1.0, 1.0, 0, 64, 2**53 + 1]), "schema", "a count above 2^53"),
        ("Sampling", b"\x01" + pack(dict(zip("abcde", ok, strict=True))), "schema", "a map"),
        ("Completion", b"\x01" + pack([[text], "stopped", None]), "schema", "an unknown word"),
        ("Completion", b"\x01" + pack([[["txt", "7"]], "stop", None]), "schema", "an unknown tag"),
        ("Completion", b"\x01\x93\x91\x92\xa4text\xa1\xff\xa4stop\xc0", "schema", "text that is not UTF-8"),
        ("Completion", b"\x01\x93\x91\x92\xa4text\xd9\x017\xa4stop\xc0", "not-canonical", "text in a longer form"),
        ("Completion", b"\x01" + pack([[["text", b"7"]], "stop", None]), "schema", "bytes where text belongs"),
        ("Completion", b"\x01" + pack([[text] * 17, "stop", None]), "schema", "17 parts"),
        (
            "Completion",
            b"\x01" + pack([[text], "stop", [TOKENIZER, [7, 0], b"\0" * 4]]),
            "schema",
            "a logprob for two ids",
        ),
        ("TaskRef", b"\x01" + pack(["chain_sum", b"\0" * 31, 1, 0, 0]), "schema", "a digest of 31 bytes"),
        ("TaskRef", b"\x01" + pack(["x" * 201, b"\0" * 32, 1, 0, 0]), "schema", "a name of 201 characters"),
    ]
    return {"good": rows, "bad": [{"noun": n, "hex": d.hex(), "reason": r, "why": w} for n, d, r, w in bad]}


def ticket_word(frame: bytes) -> str:
    return "waggle1:" + base64.urlsafe_b64encode(frame + hashlib.sha256(frame).digest()[:4]).decode().rstrip("=")


def charter(world: World) -> Any:
    made = world.charter
    unsigned = encode(replace(made, signature=b""))
    facts = {"fields": plain(made), "hex": encode(made).hex(), "signed": (b"waggle/charter/1\0" + unsigned).hex()}
    return {**facts, "digest": world.id.hex(), "families": [digest(family).hex() for family in made.families]}


def tickets(world: World) -> Any:
    made, addresses = world.charter, (f"{ALICE.id.hex()}@192.0.2.7:4242,[2001:db8::1]:4242",)
    ticket = Ticket(made, addresses, NOW_MS + 1)
    word = ticket_word(stored(encode(ticket)))

    def of(changed: Charter) -> str:
        return ticket_word(stored(encode(Ticket(changed, addresses))))

    bad = [
        (word[:-1], "a letter is missing"),
        (word[:-1] + ("A" if word[-1] != "A" else "B"), "a wrong letter"),
        (word.replace("waggle1:", "waggle2:"), "another prefix"),
        (ticket_word(encode(ticket)), "not compressed"),
        (ticket_word(stored(encode(ticket)) + b"\0"), "a byte behind the frame"),
        (
            ticket_word(b"\x28\xb5\x2f\xfd\xa0" + (2**20 + 1).to_bytes(4, "little") + stored(b"x")[9:]),
            "declares too much",
        ),
        (ticket_word(stored(encode(ticket)[:-1])), "a ticket that is cut off"),
        (of(replace(made, name="vector")), "another name than the founder signed"),
        (of(replace(made, founder=BOB.id)), "another founder than signed"),
        (of(found(ALICE, replace(made, protocol=2))), "another version"),
        (of(found(ALICE, replace(made, name="vectors\x1b[2J"))), "a name that cannot be printed"),
        (ticket_word(stored(encode(Ticket(made, addresses, NOW_MS)))), "expired"),
    ]
    good = [{"text": word, "digest": world.id.hex(), "addresses": list(addresses), "expires_ms": ticket.expires_ms}]
    spaced = {**good[0], "text": "\n ".join(word[start : start + 60] for start in range(0, len(word), 60))}
    return {"good": [*good, spaced], "bad": [{"text": text, "why": why} for text, why in bad]}


def record(key: Key = ALICE, made_ms: int = NOW_MS) -> Record:
    return signed(key, "192.0.2.7:4242", made_ms)


def records(world: World) -> Any:
    later = replace(record(), expires_ms=NOW_MS + 86_400_001)
    later = replace(later, signature=ALICE.sign(b"waggle/address/1\0" + encode(replace(later, signature=b""))))
    rows = [
        (record(), "kept", "fresh"),
        (record(made_ms=NOW_MS + 600_000), "kept", "600 s ahead"),
        (record(made_ms=NOW_MS - 86_399_999), "kept", "all but over"),
        (record(made_ms=NOW_MS + 600_001), "future", "more than 600 s ahead"),
        (later, "future", "for longer than a day"),
        (record(made_ms=NOW_MS - 86_400_000), "expired", "a day old"),
        (replace(record(), address="192.0.2.8:4242"), "signature", "another address than was signed"),
        (replace(record(), peer=BOB.id), "signature", "somebody else's"),
    ]
    return [{"hex": encode(made).hex(), "verdict": verdict, "why": why} for made, verdict, why in rows]


def frames(world: World) -> Any:
    said: list[Said] = [
        Hello((1,), world.id, True, record()),
        Welcome(1, "", record(BOB), (record(),)),
        Welcome(0, "no room", record(BOB), ()),
        Push(world.id, b"a message"),
        Have((made_up(1), made_up(2))),
        Want((made_up(1),)),
        Known((record(), record(BOB))),
        Ping(),
        Bye(()),
    ]
    good = [{"hex": encode(Frame(one)).hex(), "fields": plain(one)} for one in said]
    hello = encode(Frame(said[0]))
    told = [plain_record(record(Key.from_seed(bytes([n]) * 32))) for n in range(10, 19)]
    bad = [
        (b"\x02" + hello[1:], "another version byte"),
        (hello[:-1], "cut off"),
        (hello + b"\0", "a byte behind the end"),
        (b"\x01" + hello[2:], "without the frame around it"),
        (b"\x01" + pack([["pong"]]), "an unknown tag"),
        (b"\x01" + pack([["ping", 1]]), "a field too many"),
        (b"\x01" + pack([["have", []]]), "nothing there"),
        (b"\x01" + pack([["want", [made_up(n) for n in range(65)]]]), "65 ids"),
        (b"\x01" + pack([["push", b"", b"x"]]), "an empty topic"),
        (b"\x01" + pack([["push", b"t" * 65, b"x"]]), "a topic of 65 bytes"),
        (b"\x01" + pack([["known", told]]), "nine records"),
        (b"\x01" + pack([["hello", [], world.id, True, plain_record(record())]]), "no version"),
        (b"\x01" + pack([{"ping": []}]), "a map"),
    ]
    first, second = encode(Frame(said[0])), encode(Frame(Ping()))
    lengths = [len(one).to_bytes(4, "big") for one in (first, second)]
    stream = b"F" + lengths[0] + first + lengths[1] + second
    answer = bytes.fromhex(good[1]["hex"])
    return {
        "good": good,
        "bad": [{"hex": data.hex(), "why": why} for data, why in bad],
        "dialler_writes": stream.hex(),
        "acceptor_writes": (len(answer).to_bytes(4, "big") + answer).hex(),
    }


def plain_record(made: Record) -> list[Any]:
    return [getattr(made, name) for name in made.__struct_fields__]


def handshakes(world: World) -> Any:
    """What an acceptor that speaks versions 1 and 2 answers; it has room."""
    rows = []
    for speaks, network, members in [
        ((1,), world.id, False),
        ((3, 2, 1), world.id, False),
        ((3,), world.id, False),
        ((1,), made_up(3), False),
        ((1,), charter_digest(world.closed), True),
    ]:
        mine = charter_digest(world.closed) if members else world.id
        admits: Callable[[bytes], bool] = lambda peer, closed=members: not closed or is_member(world.closed, peer)  # noqa: E731
        terms, hello = Terms(mine, speaks=(2, 1), admits=admits), Hello(speaks, network, True, record(BOB))
        why = terms.objection(BOB.id, hello)
        version = 0 if why else terms.version(speaks)
        rows.append({"network": mine.hex(), "members_only": members, "hello": encode(Frame(hello)).hex()})
        rows[-1].update({"version": version, "why": why})
    return rows


def requests(world: World) -> Any:
    def stream(proto: str, body: bytes) -> str:
        return (b"R" + encode(Request(proto, body))).hex()

    def reply(fine: bool, data: bytes) -> str:
        return (bytes((fine,)) + len(data).to_bytes(8, "big") + data).hex()

    blob = manifest_of(chunks_of(b"hello")).id
    return [
        {"writes": stream(RECENT, world.id), "reads": reply(True, batch([]))},
        {"writes": stream(PULL, encode(Pull(world.id, ()))), "reads": reply(True, batch([]))},
        {"writes": stream(BLOB, encode(Ask(Piece(blob, 1, 3)))), "reads": reply(True, b"ell")},
        {"writes": stream("waggle/none/1", b""), "reads": reply(False, b"does not speak waggle/none/1")},
    ]


def blobs(world: World) -> Any:
    rows = []
    for name, data in [("", b""), ("hello", b"hello"), ("1 MiB and a byte, all zero", bytes(CHUNK_BYTES + 1))]:
        made = manifest_of(chunks_of(data))
        rows.append({"content": name, "size_bytes": len(data), "manifest": encode(made).hex(), "id": made.id.hex()})
    one = Manifest(5, (hashlib.sha256(b"hello").digest(),))
    asks = [Ask(Contents(one.id)), Ask(Piece(one.id, 1, 3))]
    bad = [pack([5, []]), pack([0, [made_up(1)]]), pack([2**32 + 1, [made_up(1)]])]
    return {
        "blobs": rows,
        "asks": [{"hex": encode(ask).hex(), "fields": plain(ask)} for ask in asks],
        "bad_manifests": [(b"\x01" + data).hex() for data in bad],
    }
