"""A second client, written from docs/protocol.md alone: it joins a swarm, offers experience and reads that of others.

Run: python examples/peer.py TICKET --seconds 60       prints a line an event, ends by itself

It shares no code with the program: plain lists in msgpack, and iroh for connections. Section numbers are those of that
page. Every two seconds it answers questions of the family `chain_sum`, right or wrong at random, and offers groups that
hold both. Of others it checks every signature, digest, draw and answer, and says what does not hold.

Left out: a model, so nothing is learned; links that others open, relays, an address book, blobs; limits on size.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import iroh
import msgspec
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALPN, RECENT, PULL = b"waggle/1", "waggle/recent/1", "waggle/pull/1"
MAX_NOUN, MAX_FRAME, MAX_REQUEST, MAX_BATCH, EAGER_BYTES = 1 << 20, (1 << 20) + 4096, (1 << 20) + 1024, 8 << 20, 1024
MAX_LISTED, MAX_IDS, MAX_GROUPS, KEPT_ROUNDS, MAX_TAKEN, EPOCH, RUN = 1 << 18, 512, 256, 64, 6, 4096, 8
ROUND_S, DIAL_S, SILENT_S, REQUEST_S, ANSWER_S, TIMEOUT_S, LIFE_S = 2.0, 8.0, 12.0, 30.0, 60.0, 10.0, 86_400
GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def encode(fields: Sequence[Any]) -> bytes:
    """Canonical bytes (section 2)."""
    return b"\x01" + msgspec.msgpack.encode(fields)


def decode(data: bytes, most: int = MAX_NOUN) -> list[Any]:
    require(len(data) <= most, "too-large")
    require(data[:1] == b"\x01", "version")
    fields = msgspec.msgpack.decode(data[1:], type=list)
    require(encode(fields) == data, "not-canonical")
    return fields


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def digest(kind: str, data: bytes) -> bytes:
    return sha(b"waggle/" + kind.encode() + b"\0" + data)


def unzip(frame: bytes, most: int) -> bytes:
    require(0 <= zstandard.frame_content_size(frame) <= most, "too-large")
    return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)


def batch(items: Sequence[bytes]) -> bytes:
    """Several nouns in one reply (section 12)."""
    content = b"".join(len(item).to_bytes(4, "big") + item for item in items)
    return zstandard.ZstdCompressor(write_content_size=True).compress(content)


def unbatch(frame: bytes, most: int) -> list[bytes]:
    content, items = unzip(frame, MAX_BATCH), list[bytes]()
    while content:
        end = 4 + int.from_bytes(content[:4], "big")
        require(len(content) >= max(4, end), "framing")
        require(len(items) < most, "too-many")
        items, content = [*items, content[4:end]], content[end:]
    return items


def body_of(news: list[Any], answers: list[Any], line: int) -> list[Any]:
    """What an announcement and answers make together (section 12)."""
    _, policy, sampling, parts, cut, tokens = answers
    completions = [
        [[["text", part]] if isinstance(part, str) else part, "length" if i in cut else "stop", ids]
        for i, (part, ids) in enumerate(zip(parts, tokens or [None] * len(parts), strict=True))
    ]
    return [news[4][line][1], policy, sampling, completions, news[0], news[2]]


def seed_for(*purpose: str | int | bytes) -> int:
    """A seed (section 10)."""
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


def chain_sum(config: str, seed: int, index: int) -> tuple[str, int]:
    """A sum as ReasoningGYM makes it, without its blanks, and its value."""
    c = {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 4, **json.loads(config)}
    rng = random.Random(seed + index)
    terms, digits = rng.randint(c["min_terms"], c["max_terms"]), rng.randint(c["min_digits"], c["max_digits"])
    first, *rest = [rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1) for _ in range(terms)]
    terms_left = [rng.choice("+-") + str(number) for number in rest]
    return str(first) + "".join(terms_left), first + sum(map(int, terms_left))


def root(ids: Sequence[bytes]) -> bytes:
    """Of a Merkle tree (section 11)."""
    if len(ids) == 1:
        return sha(b"\0" + ids[0])
    split = 1 << (len(ids) - 1).bit_length() - 1
    return sha(b"\1" + root(ids[:split]) + root(ids[split:]))


def head(author: bytes, swarm: bytes, number: int, created_ms: int, ids: Sequence[bytes]) -> bytes:
    """What an author signs of a round (section 11)."""
    numbers = b"".join(n.to_bytes(8, "big") for n in (number, created_ms, len(ids)))
    return b"waggle/round/1\0" + author + swarm + numbers + root(ids)


def now_ms() -> int:
    return int(time.time() * 1000)


def say(event: str, **facts: object) -> None:
    print(event, *(f"{name}={value}" for name, value in facts.items()), flush=True)


class Swarm:
    """What a ticket says (section 4), the swarm's questions (10), what it accepts (14)."""

    def __init__(self, ticket: str) -> None:
        word = "".join(ticket.split()).removeprefix("waggle1:")
        data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
        require(sha(data[:-4])[:4] == data[-4:], "a damaged ticket")
        charter, self.addresses, expires_ms = decode(unzip(data[:-4], MAX_NOUN))
        _, self.families, protocol, self.rules, self.share, _, self.members, founder, _, signature = charter
        unsigned = encode([*charter[:-1], b""])
        Ed25519PublicKey.from_public_bytes(founder).verify(signature, b"waggle/charter/1\0" + unsigned)
        require(protocol == 1 and not 0 < expires_ms <= now_ms(), "a ticket of another version, or expired")
        self.id = digest("Charter", unsigned)
        self.configs = [digest("Family", encode(family)) for family in self.families]

    def ref_at(self, author: bytes, epoch: int, index: int) -> list[Any]:
        run, weights = index // RUN, [family[9] for family in self.families]
        common = unit(seed_for("common", self.id, epoch), run) < self.share
        seed = seed_for("stream", self.id, b"" if common else author, epoch)
        place = (seed_for("family", seed) << 11) + run * GOLDEN & MASK
        share, position = place * sum(weights) >> 64, 0
        while share >= sum(weights[: position + 1]):
            position += 1
        return [self.families[position][0], self.configs[position], seed, epoch, index]

    def truth_of(self, ref: list[Any]) -> str | None:
        """The answer to a question; None where this client cannot make it, or it is reserved."""
        _, source, config, _, _, _, working, *_ = self.families[self.configs.index(ref[1])]
        if (ref[0], source, working) != ("chain_sum", "reasoning-gym", "") or "allow_negation" in config:
            return None
        expression, truth = chain_sum(config, ref[2], ref[4])
        place = sha(b"waggle/bucket\0" + digest("question", b"arithmetic\0" + expression.encode()))
        return str(truth) if int.from_bytes(place[:8], "big") / 2.0**64 >= 0.25 else None

    def check_news(self, news: list[Any], sender: bytes) -> None:
        author, charter, number, created_ms, entries, signature = news
        ids, (max_age_s, *_, max_skew_s) = [entry[0] for entry in entries], self.rules
        require(charter == self.id and author == sender, "other-charter, or another author")
        require(not self.members or author in self.members, "not-member")
        require(len(set(ids)) == len(ids) <= MAX_GROUPS, "quota, or duplicate")
        require(-1000 * max_skew_s <= now_ms() - created_ms <= 1000 * max_age_s, "stale, or future")
        Ed25519PublicKey.from_public_bytes(author).verify(signature, head(author, charter, number, created_ms, ids))

    def check_body(self, body: list[Any]) -> str:
        """How many answers are right, by my own grading, as far as this client can make the question."""
        ref, _, _, completions, author, _ = body
        require(ref[4] < EPOCH and ref == self.ref_at(author, ref[3], ref[4]), "not-drawn")
        texts, truth = ["".join(part[1] for part in parts) for parts, _, _ in completions], self.truth_of(ref)
        return f"{'?' if truth is None else sum(text.strip() == truth for text in texts)}/{len(texts)}"


@dataclass
class Link:
    """A connection that this client opened, with the stream for frames (section 5); requests (9)."""

    peer: bytes
    connection: Any
    stream: Any

    async def send(self, *said: list[Any], opening: bytes = b"") -> None:
        frames = [encode([one]) for one in said]
        await self.stream.send().write_all(opening + b"".join(len(f).to_bytes(4, "big") + f for f in frames))

    async def receive(self) -> list[Any]:
        size = int.from_bytes(await self.stream.recv().read_exact(4), "big")
        require(size <= MAX_FRAME, "too-large")
        (said,) = decode(bytes(await self.stream.recv().read_exact(size)), MAX_FRAME)
        return list(said)

    async def ask(self, proto: str, body: bytes) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            stream = await self.connection.open_bi()
            await stream.send().write_all(b"R" + encode([proto, body]))
            await stream.send().finish()
            fine, *length = await stream.recv().read_exact(9)
            require((size := int.from_bytes(bytes(length), "big")) <= MAX_BATCH, "too-large")
            data = bytes(await stream.recv().read_exact(size)) if size else b""
        require(fine == 1, f"no answer to {proto}: {data[:200].decode('utf-8', 'replace')}")
        return data


class Client:
    def __init__(self, key: Ed25519PrivateKey, swarm: Swarm) -> None:
        self.key, self.id, self.swarm = key, key.public_key().public_bytes_raw(), swarm
        self.neighbours: dict[bytes, Link] = {}
        self.offers: dict[int, tuple[list[Any], dict[bytes, list[Any]]]] = {}  # by round: announcement, bodies by id
        self.messages: dict[bytes, list[Any]] = {}  # by id: mine as frames, to be sent to who wants them; others' empty
        self.epoch = self.index = self.number = self.created_ms = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Awaitable[None]) -> None:
        """Do something meanwhile; what a peer did wrong ends that and nothing else."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # the boundary: whatever a peer did becomes a line
                said = error.message() if isinstance(error, iroh.IrohError) else error
                say("ended", why=f"{type(error).__name__}({said})"[:160])

        task = asyncio.create_task(guarded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def open(self, bind: str) -> None:
        options = iroh.EndpointOptions(preset=iroh.preset_minimal(), bind_addr=bind, alpns=[ALPN])
        options.secret_key, options.relay_mode = self.key.private_bytes_raw(), iroh.RelayMode.disabled()
        self.endpoint = await iroh.Endpoint.bind(options)
        self.address = ",".join(map(str, self.endpoint.bound_sockets()))
        say("online", id=self.id.hex(), address=self.address)

    async def dial(self, peer: bytes, where: str) -> None:
        """Become a peer's neighbour (section 7); where it has no room, ask those of whom it tells."""
        direct = [way for way in where.split(",") if not way.startswith("https://")]
        record = [self.id, self.address, now_ms(), now_ms() + 1000 * LIFE_S]
        signature = self.key.sign(b"waggle/address/1\0" + encode([*record, b""]))
        async with asyncio.timeout(DIAL_S):
            address = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), None, direct)
            connection = await self.endpoint.connect(address, ALPN)
            link = Link(peer, connection, await connection.open_bi())
            hello = ["hello", [1], self.swarm.id, not self.neighbours, [*record, signature]]
            await link.send(hello, opening=b"F")
            tag, version, why, (owner, *_), known = await link.receive()
        require(tag == "welcome" and owner == peer, "schema")
        if version == 1:
            return await self.listen(link)
        connection.close(0, why.encode())
        require(why == "no room", f"{peer.hex()[:8]} says: {why}")
        for other, place, *_ in () if self.neighbours else known:
            self.begin(self.dial(other, place))

    async def listen(self, link: Link) -> None:
        """A neighbour's frames (section 8), until it goes."""
        self.neighbours[link.peer] = link
        say("neighbour", peer=link.peer.hex()[:8])
        self.begin(self.serve(link))
        self.begin(self.greet(link))
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    await self.on_frame(link, await link.receive())
        finally:
            del self.neighbours[link.peer]
            link.connection.close(0, b"good bye")

    async def on_frame(self, link: Link, said: list[Any]) -> None:
        match said:
            case ["push", topic, data]:
                if topic == self.swarm.id:
                    self.begin(self.read(link, data))
            case ["have", ids]:
                if lacking := [name for name in ids if name not in self.messages]:
                    await link.send(["want", lacking[:8]])
            case ["want", ids]:
                await link.send(*(self.messages[name] for name in ids if self.messages.get(name)))
            case [tag, *_] if tag not in ("known", "ping"):
                raise ValueError(f"{tag} from a neighbour")

    async def serve(self, link: Link) -> None:
        while True:
            self.begin(self.answer(await link.connection.accept_bi()))

    async def answer(self, stream: Any) -> None:
        """One request of a neighbour's (section 9)."""
        async with asyncio.timeout(REQUEST_S):
            require(await stream.recv().read_exact(1) == b"R", "a stream of no known kind")
            data = bytes(await stream.recv().read_to_end(MAX_REQUEST))
        try:
            fine, reply = True, self.reply(*decode(data, MAX_REQUEST))
        except Exception as error:  # likewise, and words for who asked
            fine, reply = False, f"cannot answer: {error}".encode()
        async with asyncio.timeout(ANSWER_S):
            await stream.send().write_all(bytes((fine,)) + len(reply).to_bytes(8, "big") + reply)
            await stream.send().finish()

    def reply(self, proto: str, body: bytes) -> bytes:
        """What neighbours ask for (section 12)."""
        if proto == RECENT:
            return batch([encode(news) for news, _ in self.offers.values()] if body == self.swarm.id else [])
        require(proto == PULL, f"does not speak {proto}")
        charter, ids = decode(body)
        held = {name: body for _, bodies in self.offers.values() for name, body in bodies.items()}
        given = [(number, held[name]) for number, name in enumerate(ids) if name in held and charter == self.swarm.id]
        say("gave", groups=len(given))
        return batch([encode([n, b[1], b[2], [parts[0][1] for parts, _, _ in b[3]], [], []]) for n, b in given])

    async def greet(self, link: Link) -> None:
        for data in unbatch(await link.ask(RECENT, self.swarm.id), MAX_IDS):
            await self.read(link, data)

    async def read(self, link: Link, data: bytes) -> None:
        """Check an announcement, ask for some of it, check what comes (sections 12 and 14)."""
        name, news = sha(self.swarm.id + b"\0" + data), decode(data, MAX_LISTED)
        if name in self.messages:
            return
        self.messages[name] = []
        self.swarm.check_news(news, link.peer)
        ids = [entry[0] for entry in news[4]][:MAX_TAKEN]
        for item in unbatch(await link.ask(PULL, encode([self.swarm.id, ids])), len(ids)):
            answers = decode(item)
            body = body_of(news, answers, line=answers[0])
            require(digest("Body", encode(body)) == ids[answers[0]], "signature")
            say("read", author=body[4].hex()[:8], round=body[5], right=self.swarm.check_body(body))

    def groups(self, num: int = 4) -> Iterator[list[Any]]:
        """My next questions, answered; groups whose answers are all right or all wrong are kept back."""
        if (minute := int(time.time()) // 60) != self.epoch:
            self.epoch, self.index = minute, 0
        while num and self.index < EPOCH:
            ref = self.swarm.ref_at(self.id, self.epoch, self.index)
            self.index += 1
            if (truth := self.swarm.truth_of(ref)) is None:
                continue
            num, rng = num - 1, random.Random(f"{self.id.hex()} {ref}")
            right = [rng.random() < 0.5 for _ in range(4)]
            texts = [truth if good else str(int(truth) + rng.randint(1, 9)) for good in right]
            if 0 < sum(right) < len(right):
                policy, sampling = ["stub", sha(b"stub"), self.number], [1.0, 1.0, 0, 8, self.number]
                yield [ref, policy, sampling, [[[["text", t]], "stop", None] for t in texts], self.id, self.number]

    async def offer(self) -> None:
        """One round: answer, seal, announce (sections 11 and 12)."""
        self.number, self.created_ms = self.number + 1, max(now_ms(), self.created_ms + 1)
        for link in self.neighbours.values():
            self.begin(link.send(["ping"]))
        bodies = {digest("Body", encode(body)): body for body in self.groups()}
        if not bodies:
            return
        signature = self.key.sign(head(self.id, self.swarm.id, self.number, self.created_ms, list(bodies)))
        entries = [[name, body[0], len(body[3]), len(encode(body)) + 200] for name, body in bodies.items()]
        news = [self.id, self.swarm.id, self.number, self.created_ms, entries, signature]
        self.offers[self.number] = news, bodies
        self.offers.pop(self.number - KEPT_ROUNDS, None)
        data = encode(news)
        name, push = sha(self.swarm.id + b"\0" + data), ["push", self.swarm.id, data]
        self.messages[name] = push
        for link in self.neighbours.values():
            self.begin(link.send(push if len(data) <= EAGER_BYTES else ["have", [name]]))
        say("offered", round=self.number, groups=len(bodies), to=len(self.neighbours))


async def play(ticket: str, seconds: float, bind: str) -> None:
    client, until_s = Client(Ed25519PrivateKey.generate(), Swarm(ticket)), time.monotonic() + seconds
    await client.open(bind)
    for peer, _, where in (address.partition("@") for address in client.swarm.addresses):
        client.begin(client.dial(bytes.fromhex(peer), where))
    while time.monotonic() < until_s:
        await client.offer()
        await asyncio.sleep(ROUND_S)
    for link in list(client.neighbours.values()):
        await link.send(["bye", []])
    await client.endpoint.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ticket")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to take part")
    parser.add_argument("--bind", default="0.0.0.0:0", help="address and port to listen on")
    asyncio.run(play(**vars(parser.parse_args())))
