"""A second client, written from docs/protocol.md alone: it joins a swarm, offers experience and reads that of others.

Run: python examples/peer.py TICKET --seconds 60       prints a line an event, ends by itself

It shares no code with the program: plain lists in msgpack, and iroh for connections. Section numbers are those of
docs/protocol.md. It answers the sums of `chain_sum` (ReasoningGYM's generator is short enough to be written out here)
right or wrong at random, offers groups that hold both, and serves who asks. Of others it checks every signature, digest,
draw and answer, and says what does not hold.

Left out: a model, so nothing is learned; links that others open; an address book; blobs.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iroh
import msgspec
import zstandard
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALPN, RECENT, PULL = b"waggle/1", "waggle/recent/1", "waggle/pull/1"
MAX_NOUN, MAX_FRAME, MAX_REQUEST, MAX_BATCH, EAGER_BYTES = 1 << 20, (1 << 20) + 4096, (1 << 20) + 1024, 8 << 20, 1024
DIAL_S, PING_S, SILENT_S, REQUEST_S, ANSWER_S, TIMEOUT_S, LIFE_S = 5.0, 2.5, 7.5, 30.0, 60.0, 10.0, 86_400
EPOCH, RUN, MAX_IDS, MAX_GROUPS, KEPT_ROUNDS, MAX_TAKEN = 4096, 8, 512, 256, 64, 6
GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Refused(Exception):
    """What a peer sent does not hold."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


# ---- Canonical bytes, digests, signatures (section 2); batches (section 12)


def encode(fields: Sequence[Any]) -> bytes:
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
    return list(fields)


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def digest(kind: str, data: bytes) -> bytes:
    return sha(b"waggle/" + kind.encode() + b"\0" + data)


def is_signed(peer: bytes, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


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
        first = start + 4
        start = first + int.from_bytes(content[start:first], "big")
        require(first <= len(content) and start <= len(content), "framing")
        require(number < most, "too-many")
        number += 1
        yield content[first:start]


# ---- Seeds and sums (section 10), trees and what is signed (section 11)


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


def chain_sum(config: str, seed: int, index: int) -> tuple[str, str]:
    """A sum as ReasoningGYM makes it, and its value."""
    c = {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 4, **json.loads(config)}
    rng = random.Random(seed + index)
    terms, digits = rng.randint(c["min_terms"], c["max_terms"]), rng.randint(c["min_digits"], c["max_digits"])
    numbers = [rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1) for _ in range(terms)]
    later = [(rng.choice("+-"), number) for number in numbers[1:]]
    total = numbers[0] + sum(number if sign == "+" else -number for sign, number in later)
    return " ".join([str(numbers[0]), *(f"{sign} {number}" for sign, number in later)]), str(total)


def root(ids: Sequence[bytes]) -> bytes:
    if len(ids) == 1:
        return sha(b"\0" + ids[0])
    split = 1 << (len(ids) - 1).bit_length() - 1
    return sha(b"\1" + root(ids[:split]) + root(ids[split:]))


def head(author: bytes, swarm: bytes, number: int, created_ms: int, ids: Sequence[bytes]) -> bytes:
    numbers = b"".join(n.to_bytes(8, "big") for n in (number, created_ms, len(ids)))
    return b"waggle/round/1\0" + author + swarm + numbers + root(ids)


def body_of(news: list[Any], line: int, answers: list[Any]) -> list[Any]:
    """The body that an announcement and somebody's `Answers` make together (section 12)."""
    author, _, number, _, entries, _ = news
    _, policy, sampling, parts, cut, tokens = answers
    completions = [
        [[["text", part]] if isinstance(part, str) else part, "length" if i in cut else "stop", ids]
        for i, (part, ids) in enumerate(zip(parts, tokens or [None] * len(parts), strict=True))
    ]
    return [entries[line][1], policy, sampling, completions, author, number]


def now_ms() -> int:
    return int(time.time() * 1000)


# ---- The swarm: its ticket (section 4), its questions (section 10), what it accepts (section 14)


class Swarm:
    def __init__(self, ticket: str) -> None:
        word = "".join(ticket.split())
        require(word.startswith("waggle1:"), "not a ticket")
        data = base64.urlsafe_b64decode(word[8:] + "=" * (-len(word[8:]) % 4))
        require(sha(data[:-4])[:4] == data[-4:], "a damaged ticket")
        charter, self.addresses, expires_ms = decode(unzip(data[:-4], MAX_NOUN))
        _, self.families, protocol, self.rules, self.common_share, _, members, founder, _, signature = charter
        unsigned = encode([*charter[:-1], b""])
        require(protocol == 1, "a swarm of another version")
        require(is_signed(founder, b"waggle/charter/1\0" + unsigned, signature), "a charter that is not signed")
        require(not 0 < expires_ms <= now_ms(), "an expired ticket")
        self.id, self.members = digest("Charter", unsigned), set(members)
        self.configs = [digest("Family", encode(family)) for family in self.families]

    def ref_at(self, author: bytes, epoch: int, index: int) -> list[Any]:
        """The reference of an author's draw."""
        run, weights = index // RUN, [family[9] for family in self.families]
        common = unit(seed_for("common", self.id, epoch), run) < self.common_share
        seed = seed_for("stream", self.id, b"" if common else author, epoch)
        place = (seed_for("family", seed) << 11) + run * GOLDEN & MASK
        share, position = place * sum(weights) >> 64, 0
        while share >= sum(weights[: position + 1]):
            position += 1
        return [self.families[position][0], self.configs[position], seed, epoch, index]

    def sum_of(self, ref: list[Any]) -> tuple[str, list[Any]] | None:
        """The truth of a question and its family; None for what this client cannot make, and for what is reserved."""
        family = self.families[self.configs.index(ref[1])]
        if ref[0] != "chain_sum" or family[1] != "reasoning-gym" or json.loads(family[2]).get("allow_negation"):
            return None
        expression, truth = chain_sum(family[2], ref[2], ref[4])
        asked = digest("question", b"arithmetic\0" + "".join(expression.split()).encode())
        share = int.from_bytes(sha(b"waggle/bucket\0" + asked)[:8], "big") / 2.0**64
        return (truth, family) if share >= 0.25 else None

    def check_news(self, news: list[Any], sender: bytes) -> None:
        author, charter, number, created_ms, entries, signature = news
        ids, (max_age_s, *_, max_skew_s) = [entry[0] for entry in entries], self.rules
        require(charter == self.id, "other-charter")
        require(not self.members or author in self.members, "not-member")
        require(author == sender, "signature")
        require(1 <= len(ids) <= MAX_GROUPS, "quota")
        require(len(set(ids)) == len(ids), "duplicate")
        require(created_ms >= now_ms() - 1000 * max_age_s, "stale")
        require(created_ms <= now_ms() + 1000 * max_skew_s, "future")
        require(is_signed(author, head(author, charter, number, created_ms, ids), signature), "signature")

    def check_body(self, body: list[Any]) -> str:
        """How many answers are right, by my own grading, as far as this client can make the question."""
        ref, _, (temperature, *_), completions, author, _ = body
        require(ref[1] in self.configs, "family")
        require(ref[4] < EPOCH and ref == self.ref_at(author, ref[3], ref[4]), "not-drawn")
        require(2 <= len(completions) <= self.rules[1], "group-size")
        require(0.05 <= temperature <= 4, "sampling")
        require(all(part[0] == "text" for parts, _, _ in completions for part in parts), "blob")
        texts = ["".join(part[1] for part in parts) for parts, _, _ in completions]
        require(all(len(text) <= self.rules[2] for text in texts), "too-long")
        if (known := self.sum_of(ref)) is None:
            return f"?/{len(texts)}"
        answers = [text.rpartition("Answer:")[2] if known[1][6] else text for text in texts]
        return f"{sum(answer.strip() == known[0] for answer in answers)}/{len(texts)}"


# ---- A link that this client dialled: frames (section 5) and requests (section 9)


@dataclass
class Link:
    peer: bytes
    connection: Any
    stream: Any
    sent_s: float = 0.0

    async def send(self, *said: list[Any], opening: bytes = b"") -> None:
        frames = [encode([one]) for one in said]
        self.sent_s = time.monotonic()
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
    """A member of the swarm."""

    def __init__(self, key: Ed25519PrivateKey, swarm: Swarm, skill: float) -> None:
        self.key, self.id, self.swarm, self.skill = key, key.public_key().public_bytes_raw(), swarm, skill
        self.neighbours: dict[bytes, Link] = {}
        self.rounds: dict[int, tuple[list[Any], dict[bytes, list[Any]]]] = {}
        """What is on offer: the announcement and the bodies of my last rounds."""
        self.messages: dict[bytes, list[Any]] = {}
        """Every message that is known, by its id; mine as frames, to be sent to who wants them."""
        self.heard: dict[bytes, int] = {}
        self.epoch = self.index = self.number = self.created_ms = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def say(self, event: str, **facts: object) -> None:
        print(event, *(f"{name}={value}" for name, value in facts.items()), flush=True)

    def begin(self, work: Awaitable[None]) -> None:
        """Do something meanwhile; what a peer did wrong ends that and nothing else."""

        async def guarded() -> None:
            try:
                await work
            except (iroh.IrohError, Refused, TimeoutError, ValueError, TypeError, LookupError) as error:
                said = error.message() if isinstance(error, iroh.IrohError) else error
                self.say("refused", why=f"{type(error).__name__}({said})"[:160])

        task = asyncio.create_task(guarded())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def open(self, bind: str) -> None:
        class Bound(iroh.Preset):  # type: ignore[misc]
            def apply(self, builder: Any) -> None:
                builder.apply_minimal()
                builder.bind_addr(bind)

        secret, relays = self.key.private_bytes_raw(), iroh.RelayMode.disabled()
        options = iroh.EndpointOptions(preset=Bound(), secret_key=secret, alpns=[ALPN], relay_mode=relays)
        self.endpoint = await iroh.Endpoint.bind(options)
        self.address = ",".join(map(str, self.endpoint.bound_sockets()))[:200]
        self.say("online", id=self.id.hex(), address=self.address)

    async def dial(self, peer: bytes, where: str) -> None:
        """Become a peer's neighbour (section 7); where it has no room, ask those of whom it tells."""
        ways = where.split(",")
        relay = next((way for way in ways if way.startswith("https://")), None)
        direct = [way for way in ways if not way.startswith("https://")]
        record = [self.id, self.address, now_ms(), now_ms() + 1000 * LIFE_S]
        signature = self.key.sign(b"waggle/address/1\0" + encode([*record, b""]))
        async with asyncio.timeout(DIAL_S):
            address = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), relay, direct)
            connection = await self.endpoint.connect(address, ALPN)
            link = Link(peer, connection, await connection.open_bi())
            hello = ["hello", [1], self.swarm.id, not self.neighbours, [*record, signature]]
            await link.send(hello, opening=b"F")
            tag, version, why, (owner, *_), known = await link.receive()
        require(tag == "welcome" and owner == peer, "schema")
        if version == 1:
            return await self.listen(link)
        connection.close(0, b"good bye")
        self.say("turned-away", peer=peer.hex()[:8], why=why)
        for other, place, *_ in known if why == "no room" and not self.neighbours else ():
            self.begin(self.dial(other, place))

    async def listen(self, link: Link) -> None:
        """A neighbour's frames (section 8), until it goes."""
        self.neighbours[link.peer] = link
        self.say("neighbour", peer=link.peer.hex()[:8])
        self.begin(self.serve(link))
        self.begin(self.greet(link))
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    said = await link.receive()
                if said[0] == "bye":
                    break
                await self.on_frame(link, said)
        finally:
            del self.neighbours[link.peer]
            link.connection.close(0, b"good bye")
            self.say("parted", peer=link.peer.hex()[:8])

    async def on_frame(self, link: Link, said: list[Any]) -> None:
        match said:
            case ["push", topic, data]:
                name = sha(topic + b"\0" + data)
                if topic == self.swarm.id and name not in self.messages:
                    self.messages[name] = []
                    self.begin(self.read(link, data))
            case ["have", ids]:
                if lacking := [name for name in ids if name not in self.messages]:
                    await link.send(["want", lacking[:8]])
            case ["want", ids]:
                await link.send(*(self.messages[name] for name in ids if self.messages.get(name)))
            case ["known", _] | ["ping"]:
                pass
            case _:
                raise Refused("a frame that has no place here")

    async def serve(self, link: Link) -> None:
        with contextlib.suppress(iroh.IrohError):  # the link is gone
            while True:
                self.begin(self.answer(await link.connection.accept_bi()))

    async def answer(self, stream: Any) -> None:
        """One request of a neighbour's."""
        async with asyncio.timeout(REQUEST_S):
            require(await stream.recv().read_exact(1) == b"R", "a stream of no known kind")
            data = bytes(await stream.recv().read_to_end(MAX_REQUEST))
        try:
            proto, body = decode(data, MAX_REQUEST)
            fine, reply = True, self.reply(proto, body)
        except (Refused, ValueError, TypeError, LookupError) as error:
            fine, reply = False, f"cannot answer: {error}".encode()
        async with asyncio.timeout(ANSWER_S):
            await stream.send().write_all(bytes((fine,)) + len(reply).to_bytes(8, "big") + reply)
            await stream.send().finish()

    # ---- Offering and asking (section 12)

    def reply(self, proto: str, body: bytes) -> bytes:
        if proto == RECENT:
            return batch([encode(news) for news, _ in self.rounds.values()] if body == self.swarm.id else [])
        require(proto == PULL, f"does not speak {proto}")
        charter, ids = decode(body)
        held = {name: group for _, groups in self.rounds.values() for name, group in groups.items()}
        given = [(number, held[name]) for number, name in enumerate(ids) if name in held and charter == self.swarm.id]
        self.say("gave", groups=len(given))
        columns = [[n, g[1], g[2], [parts[0][1] for parts, _, _ in g[3]], [], []] for n, g in given]
        return batch([encode(answers) for answers in columns])

    async def greet(self, link: Link) -> None:
        for data in unbatch(await link.ask(RECENT, self.swarm.id), MAX_IDS):
            await self.read(link, data)

    async def read(self, link: Link, data: bytes) -> None:
        """Check an announcement, ask for some of it, check what comes."""
        news = decode(data, 1 << 18)
        if news[3] <= self.heard.get(link.peer, -1):
            return
        self.swarm.check_news(news, link.peer)
        self.heard[link.peer] = news[3]
        ids = [entry[0] for entry in news[4]][:MAX_TAKEN]
        for item in unbatch(await link.ask(PULL, encode([self.swarm.id, ids])), len(ids)):
            answers = decode(item)
            body = body_of(news, answers[0], answers)
            require(digest("Body", encode(body)) == ids[answers[0]], "signature")
            right = self.swarm.check_body(body)
            self.say("read", author=body[4].hex()[:8], round=body[5], right=right)

    def groups(self, num: int) -> Iterator[list[Any]]:
        """My next questions, answered; groups whose answers are all right or all wrong are kept back."""
        minute = int(time.time()) // 60
        if minute != self.epoch:
            self.epoch, self.index = minute, 0
        while num and self.index < EPOCH:
            ref = self.swarm.ref_at(self.id, self.epoch, self.index)
            self.index += 1
            if (known := self.swarm.sum_of(ref)) is None:
                continue
            (truth, family), num, rng = known, num - 1, random.Random(f"{self.id.hex()} {ref}")
            right = [rng.random() < self.skill for _ in range(4)]
            texts = [truth if good else str(int(truth) + rng.randint(1, 9)) for good in right]
            completions = [[[["text", f"Answer: {t}" if family[6] else t]], "stop", None] for t in texts]
            if 0 < sum(right) < len(right):
                policy, sampling = ["stub", sha(b"stub"), self.number], [1.0, 1.0, 0, family[7], self.number]
                yield [ref, policy, sampling, completions, self.id, self.number]

    async def offer(self, num: int) -> None:
        """One round: answer, seal, announce."""
        self.number, self.created_ms = self.number + 1, max(now_ms(), self.created_ms + 1)
        bodies = {digest("Body", encode(group)): group for group in self.groups(num)}
        if not bodies:
            return
        signature = self.key.sign(head(self.id, self.swarm.id, self.number, self.created_ms, list(bodies)))
        seal_bytes = 80 + len(signature) + 34 * len(bodies).bit_length()
        entries = [[name, g[0], len(g[3]), len(encode(g)) + seal_bytes] for name, g in bodies.items()]
        news = [self.id, self.swarm.id, self.number, self.created_ms, entries, signature]
        self.rounds[self.number] = news, bodies
        self.rounds.pop(self.number - KEPT_ROUNDS, None)
        data = encode(news)
        name, push = sha(self.swarm.id + b"\0" + data), ["push", self.swarm.id, data]
        self.messages[name] = push
        for link in list(self.neighbours.values()):
            self.begin(link.send(push if len(data) <= EAGER_BYTES else ["have", [name]]))
        self.say("offered", round=self.number, groups=len(bodies), to=len(self.neighbours))

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


async def play(options: argparse.Namespace) -> None:
    swarm = Swarm(options.ticket)
    secret = bytes.fromhex(options.key.read_text()) if options.key else random.SystemRandom().randbytes(32)
    client = Client(Ed25519PrivateKey.from_private_bytes(secret), swarm, options.skill)
    await client.open(options.bind)
    for address in swarm.addresses:
        peer, _, where = address.partition("@")
        client.begin(client.dial(bytes.fromhex(peer), where))
    client.begin(client.ping())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(options.seconds):
            while True:
                await client.offer(options.groups)
                await asyncio.sleep(options.pause)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ticket")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to take part")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two rounds")
    parser.add_argument("--groups", type=int, default=4, help="questions answered a round")
    parser.add_argument("--skill", type=float, default=0.5, help="share of right answers")
    parser.add_argument("--bind", default="0.0.0.0:0", help="address and port to listen on")
    parser.add_argument("--key", type=Path, help="file with a key's 32 bytes in hex; without it, a new key")
    asyncio.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
