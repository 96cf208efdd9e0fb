"""A second client, written from docs/protocol.md alone: it joins a swarm, offers experience and reads that of others.

Run: python examples/peer.py TICKET --seconds 60       prints a line an event, ends by itself

It shares no code with the program: plain lists in msgpack, and iroh for connections. Section numbers are those of
docs/protocol.md. It answers the sums of `chain_sum` (ReasoningGYM's generator is short enough to be written out here)
right or wrong at random, offers groups that hold both, and serves who asks. Of others it checks every signature, digest,
Merkle path, draw and answer; what does not hold is counted as refused.

Left out: a model, so nothing is learned; an address book; forwarding, of which version 1 has none; blobs.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import iroh
import msgspec
import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALPN, RECENT, PULL = b"waggle/1", "waggle/recent/1", "waggle/pull/1"
MAX_NOUN, MAX_FRAME, MAX_REQUEST, MAX_BATCH = 1 << 20, (1 << 20) + 4096, (1 << 20) + 1024, 8 << 20
DIAL_S, PING_S, SILENT_S, REQUEST_S, ANSWER_S, TIMEOUT_S = 5.0, 2.5, 7.5, 30.0, 60.0, 10.0
EAGER_BYTES, EPOCH, RUN, MAX_IDS, KEPT_ROUNDS, MAX_TAKEN, WINDOW = 1024, 4096, 8, 512, 64, 6, 8
GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Refused(Exception):
    """What a peer sent does not hold."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


# ---- Canonical bytes, digests, compression (section 2)


def encode(fields: list[Any]) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(fields)


def decode(data: bytes, most: int = MAX_NOUN) -> list[Any]:
    require(len(data) <= most, "too-large")
    require(data[:1] == b"\x01", "version")
    try:
        fields = msgspec.msgpack.decode(data[1:])
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Refused("schema") from None
    require(isinstance(fields, list), "schema")
    require(encode(fields) == data, "not-canonical")
    return fields


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def digest(kind: str, data: bytes) -> bytes:
    return sha(b"waggle/" + kind.encode() + b"\0" + data)


def unzip(frame: bytes, most: int) -> bytes:
    try:
        require(0 <= zstandard.frame_content_size(frame) <= most, "too-large")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError:
        raise Refused("compression") from None


def batch(items: Sequence[bytes]) -> bytes:
    content = b"".join(len(item).to_bytes(4, "big") + item for item in items)
    return zstandard.ZstdCompressor(write_content_size=True).compress(content)


def unbatch(frame: bytes, most: int) -> Iterator[bytes]:
    content, start, number = unzip(frame, MAX_BATCH), 0, 0
    while start < len(content):
        end = start + 4 + int.from_bytes(content[start : start + 4], "big")
        require(end <= len(content) and start + 4 <= len(content), "framing")
        require(number < most, "too-many")
        yield content[start + 4 : end]
        start, number = end, number + 1


def is_signed(peer: bytes, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


# ---- The swarm (section 4) and its questions (section 10)


@dataclass(frozen=True)
class Swarm:
    id: bytes
    families: list[list[Any]]
    rules: list[int]
    common_share: float
    addresses: list[str]

    @property
    def configs(self) -> list[bytes]:
        return [digest("Family", encode(family)) for family in self.families]


def read_ticket(text: str) -> Swarm:
    word = "".join(text.split())
    require(word.startswith("waggle1:"), "not a ticket")
    data = base64.urlsafe_b64decode(word[8:] + "=" * (-len(word[8:]) % 4))
    require(sha(data[:-4])[:4] == data[-4:], "a damaged ticket")
    charter, addresses, expires_ms = decode(unzip(data[:-4], MAX_NOUN))
    _, families, protocol, rules, common_share, _, _, founder, _, signature = charter
    unsigned = encode([*charter[:-1], b""])
    require(protocol == 1, "a swarm of another version")
    require(is_signed(founder, b"waggle/charter/1\0" + unsigned, signature), "a charter that is not signed")
    require(not 0 < expires_ms <= now_ms(), "an expired ticket")
    return Swarm(digest("Charter", unsigned), families, rules, common_share, addresses)


def now_ms() -> int:
    return int(time.time() * 1000)


def seed_for(*purpose: str | int | bytes) -> int:
    state = hashlib.sha256()
    for part in purpose:
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(f"{type(part).__name__}:{len(data)}:".encode() + data)
    return int.from_bytes(state.digest()[:8], "little") >> 11


def unit(key: int, position: int) -> float:
    z = (key + (position + 1) * GOLDEN) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return float((z ^ z >> 31) >> 11) * 2.0**-53


def ref_at(swarm: Swarm, author: bytes, epoch: int, index: int) -> list[Any]:
    """The reference of an author's draw."""
    run, weights = index // RUN, [family[9] for family in swarm.families]
    common = unit(seed_for("common", swarm.id, epoch), run) < swarm.common_share
    seed = seed_for("stream", swarm.id, b"" if common else author, epoch)
    place = (seed_for("family", seed) << 11) + run * GOLDEN & MASK
    share, below, position = place * sum(weights) >> 64, 0, -1
    while below <= share:
        position += 1
        below += weights[position]
    return [swarm.families[position][0], swarm.configs[position], seed, epoch, index]


def chain_sum(config: str, seed: int, index: int) -> tuple[str, str]:
    """A sum as ReasoningGYM makes it, and its value."""
    least, rng = {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 4}, random.Random(seed + index)
    c = least | json.loads(config)
    terms, digits = rng.randint(c["min_terms"], c["max_terms"]), rng.randint(c["min_digits"], c["max_digits"])
    numbers = [rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1) for _ in range(terms)]
    signs = [rng.choice("+-") for _ in numbers[1:]]
    total = numbers[0] + sum(n if sign == "+" else -n for sign, n in zip(signs, numbers[1:], strict=True))
    return " ".join([str(numbers[0]), *(f"{s} {n}" for s, n in zip(signs, numbers[1:], strict=True))]), str(total)


def sum_of(swarm: Swarm, ref: list[Any]) -> tuple[str, list[Any]] | None:
    """The truth of a question and its family; None for what this client cannot make and for what is reserved."""
    env, config, seed, _, index = ref
    family = swarm.families[swarm.configs.index(config)]
    if env != "chain_sum" or family[1] != "reasoning-gym" or json.loads(family[2]).get("allow_negation"):
        return None
    expression, truth = chain_sum(family[2], seed, index)
    asked = digest("question", b"arithmetic\0" + "".join(expression.split()).encode())
    share = int.from_bytes(sha(b"waggle/bucket\0" + asked)[:8], "big") / 2.0**64
    return (truth, family) if share >= 0.25 else None


# ---- Experience (section 11)


def root(ids: Sequence[bytes]) -> bytes:
    if len(ids) == 1:
        return sha(b"\0" + ids[0])
    split = 1 << (len(ids) - 1).bit_length() - 1
    return sha(b"\1" + root(ids[:split]) + root(ids[split:]))


def path(ids: Sequence[bytes], index: int) -> list[bytes]:
    if len(ids) == 1:
        return []
    split = 1 << (len(ids) - 1).bit_length() - 1
    if index < split:
        return [*path(ids[:split], index), root(ids[split:])]
    return [*path(ids[split:], index - split), root(ids[:split])]


def head(author: bytes, swarm: bytes, number: int, created_ms: int, size: int, top: bytes) -> bytes:
    numbers = b"".join(n.to_bytes(8, "big") for n in (number, created_ms, size))
    return b"waggle/round/1\0" + author + swarm + numbers + top


def body_of(news: list[Any], line: int, answers: list[Any]) -> list[Any]:
    """The body that an announcement and somebody's `Answers` make together."""
    author, _, number, _, entries, _ = news
    _, policy, sampling, parts, cut, tokens = answers
    completions = [
        [[["text", part]] if isinstance(part, str) else part, "length" if i in cut else "stop", ids]
        for i, (part, ids) in enumerate(zip(parts, tokens or [None] * len(parts), strict=True))
    ]
    return [entries[line][1], policy, sampling, completions, author, number]


def check_news(news: list[Any], swarm: Swarm, sender: bytes) -> None:
    """An announcement, as section 14 has it."""
    author, charter, number, created_ms, entries, signature = news
    ids, (max_age_s, *_, max_skew_s) = [entry[0] for entry in entries], swarm.rules
    require(charter == swarm.id, "other-charter")
    require(author == sender, "signature")
    require(1 <= len(ids) <= 256, "quota")
    require(len(set(ids)) == len(ids), "duplicate")
    require(created_ms >= now_ms() - 1000 * max_age_s, "stale")
    require(created_ms <= now_ms() + 1000 * max_skew_s, "future")
    require(is_signed(author, head(author, charter, number, created_ms, len(ids), root(ids)), signature), "signature")


def check_body(body: list[Any], swarm: Swarm) -> tuple[int, int] | None:
    """Right answers and answers, by my own grading; None where this client cannot make the question."""
    ref, _, (temperature, *_), completions, author, _ = body
    require(ref[1] in swarm.configs, "family")
    require(ref[4] < EPOCH and ref == ref_at(swarm, author, ref[3], ref[4]), "not-drawn")
    require(2 <= len(completions) <= swarm.rules[1], "group-size")
    require(0.05 <= temperature <= 4, "sampling")
    texts = ["".join(part[1] for part in parts if part[0] == "text") for parts, _, _ in completions]
    require(all(part[0] == "text" for parts, _, _ in completions for part in parts), "blob")
    require(all(len(text) <= swarm.rules[2] for text in texts), "too-long")
    if (known := sum_of(swarm, ref)) is None:
        return None
    truth, family = known
    answers = [text.rpartition("Answer:")[2] if family[6] else text for text in texts]
    return sum(answer.strip() == truth for answer in answers), len(texts)


# ---- Links (section 5), neighbours (7, 8), requests (9)


@dataclass(eq=False)
class Link:
    peer: bytes
    connection: Any
    stream: Any = None
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    sent_s: float = 0.0
    asked: int = 0
    """Messages that this neighbour was asked for and that have not come yet."""

    async def send(self, *said: list[Any], opening: bytes = b"") -> None:
        frames = [encode([one]) for one in said]
        async with self.writing:
            data = opening + b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
            await self.stream.send().write_all(data)
        self.sent_s = time.monotonic()

    async def receive(self) -> list[Any]:
        size = int.from_bytes(await self.stream.recv().read_exact(4), "big")
        require(size <= MAX_FRAME, "too-large")
        fields = decode(bytes(await self.stream.recv().read_exact(size)), MAX_FRAME)
        require(len(fields) == 1 and isinstance(fields[0], list) and bool(fields[0]), "schema")
        return list(fields[0])

    async def ask(self, proto: str, body: bytes) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            stream = await self.connection.open_bi()
            await stream.send().write_all(b"R" + encode([proto, body]))
            await stream.send().finish()
            reply = await stream.recv().read_exact(9)
            size = int.from_bytes(reply[1:], "big")
            require(size <= MAX_BATCH, "too-large")
            data = bytes(await stream.recv().read_exact(size)) if size else b""
        require(reply[0] == 1, f"no answer to {proto}: {data[:200].decode('utf-8', 'replace')}")
        return data


class Client:
    def __init__(self, key: Ed25519PrivateKey, swarm: Swarm, skill: float, once: bool) -> None:
        self.key, self.swarm, self.skill, self.once = key, swarm, skill, once
        self.id = key.public_key().public_bytes_raw()
        self.neighbours: dict[bytes, Link] = {}
        self.rounds: dict[int, tuple[list[Any], dict[bytes, list[Any]]]] = {}
        self.messages: dict[bytes, list[Any]] = {}
        self.heard: dict[bytes, int] = {}
        self.epoch = self.index = self.number = self.created_ms = 0
        self.num_given = self.num_read = 0
        self.done = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, event: str, **facts: object) -> None:
        print(event, *(f"{name}={value}" for name, value in facts.items()), flush=True)
        if self.once and self.num_given and self.num_read:
            self.done.set()

    def begin(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except (iroh.IrohError, Refused, TimeoutError, ValueError, TypeError, LookupError) as error:
                said = error.message() if hasattr(error, "message") else str(error)
                self.say("refused", why=f"{type(error).__name__}({said})".replace(" ", "-")[:160])

        task = asyncio.create_task(guarded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def record(self) -> list[Any]:
        made = [self.id, self.address, now_ms(), now_ms() + 86_400_000, b""]
        return [*made[:4], self.key.sign(b"waggle/address/1\0" + encode(made))]

    async def open(self, bind: str) -> None:
        class Bound(iroh.Preset):  # type: ignore[misc]
            def apply(self, builder: Any) -> None:
                builder.apply_minimal()
                builder.bind_addr(bind)

        options = iroh.EndpointOptions(
            preset=Bound(),
            secret_key=self.key.private_bytes_raw(),
            alpns=[ALPN],
            relay_mode=iroh.RelayMode.disabled(),
        )
        self.endpoint = await iroh.Endpoint.bind(options)
        self.address = ",".join(map(str, self.endpoint.bound_sockets()))[:200]
        self.say("online", id=self.id.hex(), address=self.address)
        self.begin(self.accept())

    async def accept(self) -> None:
        while (incoming := await self.endpoint.accept_next()) is not None:
            self.begin(self.take(incoming))

    async def take(self, incoming: Any) -> None:
        async with asyncio.timeout(10):
            connection = await (await incoming.accept()).connect()
        await self.serve(Link(bytes(connection.remote_id().to_bytes()), connection))

    async def dial(self, text: str) -> None:
        """Meet a peer of the ticket; where it has no room, those of whom it tells."""
        peer, _, where = text.partition("@")
        ways = where.split(",")
        relay = next((way for way in ways if way.startswith("https://")), None)
        direct = [way for way in ways if not way.startswith("https://")]
        async with asyncio.timeout(DIAL_S):
            address = iroh.EndpointAddr(iroh.EndpointId.from_bytes(bytes.fromhex(peer)), relay, direct)
            connection = await self.endpoint.connect(address, ALPN)
            link = Link(bytes.fromhex(peer), connection, await connection.open_bi())
            hello = ["hello", [1], self.swarm.id, not self.neighbours, self.record()]
            await link.send(hello, opening=b"F")
            tag, version, why, (owner, *_), known = await link.receive()
        require(tag == "welcome" and owner == link.peer, "schema")
        if version == 1:
            self.begin(self.serve(link))
            return await self.listen(link)
        connection.close(0, b"good bye")
        self.say("turned-away", by=peer[:8], why=why.replace(" ", "-"))
        for other, place, *_ in known if why == "no room" and not self.neighbours else ():
            self.begin(self.dial(f"{other.hex()}@{place}"))

    async def serve(self, link: Link) -> None:
        """The streams that the other end opens."""
        with contextlib.suppress(iroh.IrohError):  # the link is gone
            while True:
                self.begin(self.handle(link, await link.connection.accept_bi()))

    async def handle(self, link: Link, stream: Any) -> None:
        async with asyncio.timeout(REQUEST_S):
            kind = await stream.recv().read_exact(1)
            data = bytes(await stream.recv().read_to_end(MAX_REQUEST)) if kind == b"R" else b""
        if kind == b"F" and link.stream is None:
            link.stream = stream
            return await self.welcome(link)
        require(kind == b"R", "a stream of no known kind")
        try:
            proto, body = decode(data, MAX_REQUEST)
            fine, reply = True, self.answer(proto, body)
        except (Refused, ValueError, TypeError, LookupError) as error:
            fine, reply = False, f"cannot answer: {error}".encode()
        async with asyncio.timeout(ANSWER_S):
            await stream.send().write_all(bytes((fine,)) + len(reply).to_bytes(8, "big") + reply)
            await stream.send().finish()

    async def welcome(self, link: Link) -> None:
        """Answer a hello."""
        tag, speaks, network, _, (owner, *_) = await link.receive()
        require(tag == "hello" and owner == link.peer, "schema")
        why = "" if network == self.swarm.id else "this node is of another swarm"
        why = why or ("" if 1 in speaks else f"this node speaks protocol 1 and not {' or '.join(map(str, speaks))}")
        await link.send(["welcome", 0 if why else 1, why, self.record(), []])
        if not why:
            await self.listen(link)

    async def listen(self, link: Link) -> None:
        """A neighbour's frames, until it goes."""
        old = self.neighbours.get(link.peer)
        self.neighbours[link.peer] = link  # of two links the later one stays: the other end closes the other
        self.say("neighbour", peer=link.peer.hex()[:8])
        self.begin(self.greet(link))
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    said = await link.receive()
                if said[0] == "bye":
                    break
                await self.on_frame(link, said)
        finally:
            if self.neighbours.get(link.peer) is link:
                del self.neighbours[link.peer]
            if old is None:
                self.say("parted", peer=link.peer.hex()[:8])
            link.connection.close(0, b"good bye")

    async def on_frame(self, link: Link, said: list[Any]) -> None:
        match said:
            case ["push", topic, data]:
                name = sha(topic + b"\0" + data)
                link.asked = max(0, link.asked - (len(data) > EAGER_BYTES))
                if topic == self.swarm.id and name not in self.messages:
                    self.messages[name] = []
                    self.begin(self.read(link, data))
            case ["have", ids]:
                lacking = [name for name in ids if name not in self.messages][: WINDOW - link.asked]
                if lacking:
                    link.asked += len(lacking)
                    await link.send(["want", lacking])
            case ["want", ids]:
                await link.send(*(self.messages[name] for name in ids if self.messages.get(name)))
            case ["known", _] | ["ping"]:
                pass
            case _:
                raise Refused("a frame that has no place here")

    # ---- Offering and asking (section 12)

    def answer(self, proto: str, body: bytes) -> bytes:
        if proto == RECENT:
            return batch([encode(news) for news, _ in self.rounds.values()] if body == self.swarm.id else [])
        require(proto == PULL, f"does not speak {proto}")
        charter, ids = decode(body, 64 * MAX_IDS)
        held = {name: group for _, groups in self.rounds.values() for name, group in groups.items()}
        given = [(number, held[name]) for number, name in enumerate(ids) if name in held and charter == self.swarm.id]
        self.num_given += len(given)
        self.say("gave", groups=len(given))
        return batch([encode([number, *columns(group)]) for number, group in given])

    async def greet(self, link: Link) -> None:
        for data in unbatch(await link.ask(RECENT, self.swarm.id), MAX_IDS):
            await self.read(link, data)

    async def read(self, link: Link, data: bytes) -> None:
        """Check an announcement, ask for some of it, check what comes."""
        news = decode(data, 1 << 18)
        if news[3] <= self.heard.get(link.peer, -1):
            return
        check_news(news, self.swarm, link.peer)
        self.heard[link.peer] = news[3]
        lines = range(len(news[4]))[:MAX_TAKEN]
        reply = await link.ask(PULL, encode([self.swarm.id, [news[4][line][0] for line in lines]]))
        for item in unbatch(reply, len(lines)):
            answers = decode(item)
            body = body_of(news, lines[answers[0]], answers)
            require(digest("Body", encode(body)) == news[4][lines[answers[0]]][0], "signature")
            graded = check_body(body, self.swarm)
            self.num_read += 1
            right = f"{graded[0]}/{graded[1]}" if graded else "unknown"
            self.say("read", author=body[4].hex()[:8], round=body[5], answers=len(body[3]), right=right)

    def groups(self, num: int) -> Iterator[list[Any]]:
        """My next questions, answered; those whose answers are all right or all wrong are kept back."""
        minute = int(time.time()) // 60
        if minute != self.epoch:
            self.epoch, self.index = minute, 0
        while num and self.index < EPOCH:
            ref = ref_at(self.swarm, self.id, self.epoch, self.index)
            self.index += 1
            if (known := sum_of(self.swarm, ref)) is None:
                continue
            (truth, family), num = known, num - 1
            rng = random.Random(f"{self.id.hex()} {ref}")
            right = [rng.random() < self.skill for _ in range(4)]
            texts = [truth if good else str(int(truth) + rng.randint(1, 9)) for good in right]
            completions = [[[["text", f"Answer: {t}" if family[6] else t]], "stop", None] for t in texts]
            if 0 < sum(right) < len(right):
                policy, sampling = ["stub", sha(b"stub"), self.number], [1.0, 1.0, 0, family[7], self.number]
                yield [ref, policy, sampling, completions, self.id, self.number]

    async def offer(self, num: int) -> None:
        """One round: answer, seal, announce."""
        self.number += 1
        self.created_ms = max(now_ms(), self.created_ms + 1)
        bodies = {digest("Body", encode(group)): group for group in self.groups(num)}
        if not bodies:
            return
        ids, facts = list(bodies), (self.number, self.created_ms, len(bodies))
        signature = self.key.sign(head(self.id, self.swarm.id, *facts, root(ids)))
        seals = [[self.created_ms, len(ids), line, path(ids, line), signature] for line in range(len(ids))]
        entries = [
            [name, group[0], len(group[3]), len(encode([group, seal]))]
            for (name, group), seal in zip(bodies.items(), seals, strict=True)
        ]
        news = [self.id, self.swarm.id, self.number, self.created_ms, entries, signature]
        self.rounds[self.number] = news, bodies
        for old in list(self.rounds)[:-KEPT_ROUNDS]:
            del self.rounds[old]
        data = encode(news)
        name, push = sha(self.swarm.id + b"\0" + data), ["push", self.swarm.id, data]
        self.messages[name] = push
        for link in list(self.neighbours.values())[:8]:
            self.begin(link.send(push if len(data) <= EAGER_BYTES else ["have", [name]]))
        self.say("offered", round=self.number, groups=len(ids), to=len(self.neighbours))

    async def ping(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for link in self.neighbours.values():
                if time.monotonic() - link.sent_s > PING_S:
                    self.begin(link.send(["ping"]))

    async def close(self) -> None:
        for link in self.neighbours.values():
            with contextlib.suppress(iroh.IrohError):
                await link.send(["bye", []])
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.endpoint.close()


def columns(body: list[Any]) -> list[Any]:
    """What `Answers` hold behind the number, of a body of mine."""
    _, policy, sampling, completions, _, _ = body
    cut = [i for i, (_, finish, _) in enumerate(completions) if finish == "length"]
    return [policy, sampling, [parts[0][1] for parts, _, _ in completions], cut, []]


async def play(options: argparse.Namespace) -> None:
    swarm = read_ticket(options.ticket)
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(options.key.read_text())) if options.key else None
    client = Client(key or Ed25519PrivateKey.generate(), swarm, options.skill, options.once)
    await client.open(options.bind)
    for address in swarm.addresses:
        client.begin(client.dial(address))
    client.begin(client.ping())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(options.seconds):
            while not client.done.is_set():
                await client.offer(options.groups)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.done.wait(), options.pause)
    client.say("ended", given=client.num_given, read=client.num_read)
    await client.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ticket")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to take part")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two rounds")
    parser.add_argument("--groups", type=int, default=4, help="questions answered a round")
    parser.add_argument("--skill", type=float, default=0.5, help="share of right answers")
    parser.add_argument("--bind", default="0.0.0.0:0", help="address and port to listen on")
    parser.add_argument("--key", type=Path, help="file with a key's 32 bytes in hex; without it, a new key")
    parser.add_argument("--once", action="store_true", help="end once experience has gone both ways")
    asyncio.run(play(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
