"""An attacker on the real wire, for `hostile_wire.py`: one key after the other, iroh, and no manners.

An attack is what is done on one link after a proper hello; when the link ends, it comes again. What it was told when
it was cut off or turned away is counted, and compared there with what the nodes counted.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec.structs import replace

from tests.swarm.hostile import STRANGE, packed, plain
from waggle.core.codec import decode, digest, encode, pack
from waggle.core.errors import NetworkError
from waggle.core.keys import Key
from waggle.core.rng import rng_for
from waggle.core.sealing import announce, answers_of, charter_digest, seal
from waggle.core.types import Announcement, Blob, Body, Completion, Entry, Peer, PolicyRef, Sampling, TaskRef, Text
from waggle.net import frames
from waggle.net.book import Record, signed
from waggle.net.frames import PROTOCOL, Bye, Have, Hello, Known, Ping, Push, Request, Said, Want, Welcome
from waggle.net.iroh import IrohLink, IrohWire
from waggle.net.wire import MAX_FRAME_BYTES, MAX_REQUEST_BYTES
from waggle.node.exchange import MAX_BATCH_BYTES, PULL, RECENT, Pull
from waggle.swarm.batch import pack_batch, unpack_batch
from waggle.swarm.charter import new_charter
from waggle.tasks.families import family
from waggle.tasks.stream import Cursor, ref_at
from waggle.tasks.taskset import Taskset

SUMS = family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6)
CHARTER = new_charter(Key.from_seed(bytes(32)), "hostile", [SUMS], created_ms=1_700_000_000_000)
SWARM = charter_digest(CHARTER)
HONEST = [Key.from_seed(bytes([number + 1]) * 32) for number in range(16)]
EDITS = 8
LONG = 16 << 20


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def samples(key: Key, topic: bytes, at_ms: int) -> list[bytes]:
    """A frame of every kind."""
    record, name = signed(key, "192.0.2.7:4242", at_ms), bytes(range(32))
    said: list[Said] = [
        *(Hello((PROTOCOL,), topic, True, record), Welcome(PROTOCOL, "no room", record, (record,) * 3)),
        *(Push(topic, b"some words"), Have((name, name[::-1])), Want((name,)), Known((record,) * 2), Ping()),
        Bye((record,)),
    ]
    return [frames.write(one) for one in said]


def mutate(data: bytes, other: bytes, edit: int, at: int, value: int) -> bytes:
    """Bytes with one edit, of `EDITS` kinds, at a place and with a value that are taken modulo what there is."""
    at, byte = at % (len(data) + 1), value % 256
    edits: list[Callable[[], bytes]] = [
        lambda: data[:at] + bytes(b ^ 1 << value % 8 for b in data[at : at + 1]) + data[at + 1 :],
        lambda: data[:at],
        lambda: data[at:],
        lambda: data[:at] + other[value % (len(other) + 1) :],
        lambda: data[:at] + bytes((byte,)) + data[at + 1 :],
        lambda: data[:at] + (value % (1 << 32)).to_bytes(4, "big") + data[at:],
        lambda: data[:at] + data[at:] * 2,
        lambda: data[:at] + data[at + 1 + byte % 8 :],
    ]
    return edits[edit % EDITS]()


class Evil(IrohWire):
    """An endpoint whose answers are raw bytes, as many and as slow as its owner likes."""

    def __init__(self, key: Key, eve: "Eve", bind: Sequence[str]) -> None:
        super().__init__(key, bind)
        self.key, self.eve, self.where = key, eve, ""
        self.answer: Callable[[Request], AsyncIterator[bytes]] = lambda asked: given(pack_batch((), 0))

    async def _handle(self, link: IrohLink, stream: Any) -> None:
        with contextlib.suppress(Exception):  # whatever ends this, it is no loss
            if bytes(await stream.recv().read_exact(1)) == b"F":
                link.take_frames(stream)
                return
            asked = decode(Request, bytes(await stream.recv().read_to_end(MAX_REQUEST_BYTES)), MAX_REQUEST_BYTES)
            self.eve.told[f"asked for {asked.proto}"] += 1
            async for piece in self.answer(asked):
                await stream.send().write_all(piece)
            await stream.send().finish()


class Eve:
    """What one attack shares: its time, its randomness, what it offers, and what it was told."""

    def __init__(self, name: str, seconds: float, count: int, seed: int, many_hosts: bool) -> None:
        self.act, self.num_keys, stays = ATTACKS[name]
        self.many_hosts, self.stays = many_hosts, stays and not many_hosts
        self.left, self.ends_s = count, time.monotonic() + seconds
        self.rng, self.told = rng_for("eve", name, seed), Counter[str]()
        self.bodies: dict[bytes, Body] = {}
        """What was announced, by its digest."""
        self.round, self.born_ms = 0, now_ms()

    @property
    def on(self) -> bool:
        return time.monotonic() < self.ends_s and self.left > 0

    def any(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    async def attack(self, victims: Sequence[Peer]) -> Counter[str]:
        """All keys at once; returns what they were told."""
        await asyncio.gather(*(self.haunt(victim) for victim in victims for _ in range(self.num_keys)))
        return self.told

    async def haunt(self, victim: Peer) -> None:
        wire = await self.wire()
        while self.on:
            if not self.stays:
                await wire.close()
                wire = await self.wire()
            where = victim.address.split(",")[0] if self.many_hosts else victim.address
            try:
                async with asyncio.timeout(10):
                    link: Any = await wire.dial(replace(victim, address=where))
                    link.wire, link.victim, link.is_deaf = wire, victim, False
                    await self.greet(link)
            except (NetworkError, TimeoutError) as error:
                self.told[f"not taken in: {cause(error)}"] += 1
                await asyncio.sleep(0.05)
                continue
            listening = asyncio.create_task(self.listen(link))
            with contextlib.suppress(Exception):  # iroh's own errors among them; why is known to who listens
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.ends_s - time.monotonic()):
                    await self.act(self, link)
            link.close("well")
            await listening
        await wire.close()

    async def wire(self) -> Evil:
        host = ".".join(map(str, (127, *self.rng.integers(1, 255, size=3)))) if self.many_hosts else "127.0.0.1"
        bind = [f"{host}:0"] if self.many_hosts else [f"{host}:0", "[::1]:0"]
        made = Evil(Key.from_seed(self.rng.bytes(32)), self, bind)
        made.where = await made.open(lambda link: None, None)  # type: ignore[arg-type]
        return made

    async def greet(self, link: Any) -> None:
        """Introduce herself properly."""
        record = signed(link.wire.key, link.wire.where, now_ms())
        await link.send([frames.write(Hello((PROTOCOL,), SWARM, True, record))])
        welcome = frames.read(await link.receive())
        if isinstance(welcome, Welcome) and not welcome.version:
            link.close("well")
            raise NetworkError(welcome.why)
        self.told["welcomed"] += 1

    async def listen(self, link: Any) -> None:
        """Read what comes, unless she is deaf, and count how the link ends."""
        try:
            while not link.is_deaf:
                await link.receive()
            await link._connection.closed()
            raise NetworkError(link._why(None))
        except NetworkError as error:
            if "well" not in str(error):
                self.told[f"cut: {cause(error)}"] += 1


def cause(error: BaseException) -> str:
    """What ended a link, in words that can be counted."""
    text = str(error).partition("the connection is gone (")[2][:-1] or str(error) or type(error).__name__
    return "".join("#" if c.isdigit() else c for c in text)[:80]


async def given(body: bytes, fine: int = 1, size: int | None = None) -> AsyncIterator[bytes]:
    """An answer, of the size it says it has or another."""
    yield bytes((fine,)) + (len(body) if size is None else size).to_bytes(8, "big") + body


Act: TypeAlias = Callable[[Eve, Any], Awaitable[None]]
ATTACKS: dict[str, tuple[Act, int, bool]] = {}
"""What is done on a link, by how many keys for each victim at a time, and whether a key comes again."""


def act(name: str, keys: int = 1, stays: bool = True) -> Callable[[Act], Act]:
    """Declare an attack."""

    def add(function: Act) -> Act:
        ATTACKS[name] = (function, keys, stays)
        return function

    return add


def flood(name: str, make: Callable[[Eve], list[Said]], every_s: float = 0.0) -> None:
    """Declare a flood of frames, as fast as it goes or just as fast as it may be."""

    async def send(eve: Eve, link: Any) -> None:
        while eve.on:
            said = [frames.write(one) for one in make(eve)]
            await link.send(said)
            eve.told["sent"] += len(said)
            await asyncio.sleep(every_s)

    ATTACKS[name] = (send, 1, True)


def names(eve: Eve, num: int = 64) -> tuple[bytes, ...]:
    noise = eve.rng.bytes(num * 32)
    return tuple(noise[at : at + 32] for at in range(0, len(noise), 32))


def a_record(eve: Eve) -> Record:
    """An address record of somebody who need not exist, mostly with a flaw."""
    if eve.rng.random() < 0.1:  # of the honest, which she cannot sign
        return replace(signed(HONEST[15], "127.0.0.1:7", now_ms()), peer=eve.any(HONEST).id)
    key, made_ms = Key.from_seed(eve.rng.bytes(32)), now_ms()
    liar = signed(HONEST[14], f"127.0.0.1:{eve.any([7, 9])}", eve.born_ms)  # tells different stories of one time
    good = signed(key, "127.0.0.1:9", made_ms)
    expired, future = (signed(key, "127.0.0.1:9", made_ms + ms) for ms in (-90_000_000, 900_000))
    return eve.any([good, good, liar, expired, future, replace(good, address="127.0.0.1:8")])


@lru_cache
def _tasks() -> Taskset:
    return Taskset(CHARTER)


def is_train(ref: TaskRef) -> bool:
    return _tasks().bucket(_tasks().regenerate(ref)) == "train"


def bodies(key: Key, first: int, num: int, **changes: Any) -> list[Body]:
    """Groups of a key's own draws, answered in many words."""
    found: list[Body] = []
    while len(found) < num:
        ref, first = ref_at(CHARTER, SWARM, key.id, Cursor(0, first)), first + 1
        answers = tuple(Completion((Text(f"a false answer to {ref.index} is {n}"),), "stop") for n in range(8))
        if is_train(ref):
            made = Body(ref, PolicyRef("evil", SWARM, 1), Sampling(max_tokens=6), answers, key.id, first)
            found.append(replace(made, **changes))
    return found


def announced(eve: Eve, link: Any, some: Sequence[Body], later_ms: int = 0, charter: bytes = SWARM) -> Announcement:
    """A round of hers; its groups are given to who asks."""
    eve.bodies |= {digest(body): body for body in some}
    return announce(charter, seal(link.wire.key, charter, some[0].round, now_ms() + later_ms, some))


async def offered(link: Any) -> list[Announcement]:
    """What a node has announced of late."""
    reply = await link.ask(encode(Request(RECENT, SWARM)), LONG)
    return [decode(Announcement, data) for data in unpack_batch(reply.body, MAX_BATCH_BYTES, 512)]


@act("experience")
async def experience(eve: Eve, link: Any) -> None:
    """Experience with every flaw, and copies of the honest, as often as it is listened to."""
    link.wire.answer = lambda asked: answers(eve, asked)
    key, honest = link.wire.key, await offered(link)
    while eve.on:
        eve.round += 1
        fine = bodies(key, eve.round % 3000, 1)[0]
        flawed = replace(fine, **eve.any(FLAWS)(fine))
        news = announced(eve, link, [flawed], *eve.any([(), (), (), (-7_200_000,), (3_600_000,), (0, bytes(32))]))
        raw = plain(news)
        raw[int(eve.rng.integers(len(raw)))] = eve.any(STRANGE[:20])
        said = [encode(news)] * 3 + [packed(raw), packed(raw[:-1]), packed([*raw, 1]), *map(encode, honest[:1])]
        said += [encode(replace(news, entries=news.entries * 2)), encode(replace(news, signature=bytes(64)))]
        await link.send([frames.write(Push(SWARM, eve.any(said)[:1024]))])
        eve.told["sent"] += 1
        await asyncio.sleep(0.02)


FLAWS: list[Callable[[Body], dict[str, Any]]] = [
    *[lambda body: {}] * 3,
    lambda body: {"completions": body.completions[:1]},
    lambda body: {"completions": body.completions * 9},
    lambda body: {"completions": (Completion((Text("z" * 5000),), "stop"),) * 2},
    lambda body: {"completions": (Completion((Blob(SWARM, "image/png", 9),), "stop"),) * 2},
    lambda body: {"sampling": Sampling(temperature=100.0)},
    lambda body: {"task": replace(body.task, index=body.task.index + 1)},
    lambda body: {"task": replace(body.task, env="none")},
    lambda body: {"task": replace(body.task, epoch=900)},
    lambda body: {"author": HONEST[0].id},
]


async def answers(eve: Eve, asked: Request) -> AsyncIterator[bytes]:
    """What was announced, or nearly so."""
    wanted = decode(Pull, asked.body).ids if asked.proto == PULL else ()
    items = [answers_of(number, eve.bodies[name]) for number, name in enumerate(wanted) if name in eve.bodies]
    told = [encode(item) for item in items]
    for at, item in enumerate(items):
        raw = plain(item)
        raw[int(eve.rng.integers(len(raw)))] = eve.any(STRANGE[:20])
        told[at] = eve.any([told[at]] * 4 + [packed(raw), packed(raw[:-1]), told[at - 1], told[at][:-1]])
    async for piece in given(pack_batch(told, MAX_BATCH_BYTES)):
        yield piece


flood("pings", lambda eve: [Ping()] * 64)
flood("haves", lambda eve: [Have(names(eve))] * 8)
flood("haves, slowly", lambda eve: [Have(names(eve)) for _ in range(18)], 0.1)
flood("wants", lambda eve: [Want(names(eve))] * 8)
flood("pushes", lambda eve: [Push(eve.any([SWARM, b"other"]), eve.rng.bytes(1000)) for _ in range(16)])
flood("pushes, slowly", lambda eve: [Push(SWARM, eve.rng.bytes(1000)) for _ in range(18)], 0.1)
flood("unasked", lambda eve: [Push(SWARM, bytes(60_000))])
flood("known", lambda eve: [Known(tuple(a_record(eve) for _ in range(8))) for _ in range(4)])
flood("hellos", lambda eve: [Hello((PROTOCOL,), SWARM, True, signed(HONEST[15], "127.0.0.1:9", now_ms()))] * 2)


@act("frames", keys=3)
async def mutants(eve: Eve, link: Any) -> None:
    """Mutated frames, and whole ones with a mutated message. One that ends the link is waited for: all are read."""
    good, lists = (
        samples(HONEST[15], SWARM, now_ms()),
        [encode(announced(eve, link, bodies(link.wire.key, n, 2))) for n in (0, 9)],
    )
    while eve.on:
        eve.left -= 1
        message = eve.rng.random() < 0.7
        data, other = (eve.any(lists if message else good) for _ in range(2))
        for edit in eve.rng.integers(1 << 31, size=(eve.any([1, 1, 2, 5]), 3)).tolist():
            data = mutate(data, other, *edit)
        data = frames.write(Push(SWARM, data[:1024])) if message else data
        size = len(data) if eve.rng.random() < 0.97 else int(eve.rng.integers(1 << 32))
        await link._sender.write_all(size.to_bytes(4, "big") + data)
        eve.told["sent messages" if message else "sent frames"] += 1
        if size != len(data) or ends(data):
            async with asyncio.timeout(2):  # where less came than was said the node waits for the rest
                await link._connection.closed()
            return
        await asyncio.sleep(0.006)


def ends(data: bytes) -> bool:
    """Whether a frame ends a link."""
    try:
        return isinstance(frames.read(data), Hello | Welcome | Bye)
    except NetworkError:
        return True


@act("lengths", keys=2)
async def lengths(eve: Eve, link: Any) -> None:
    """Frames and requests that are larger than anything that is read, in what they say or in what they are."""
    with contextlib.suppress(NetworkError, TimeoutError):
        async with asyncio.timeout(1):
            await link.ask(bytes(MAX_REQUEST_BYTES + 1), 1000)
    size, num = eve.any([(1 << 31, 5000), (MAX_FRAME_BYTES + 1, 5000), (MAX_FRAME_BYTES, MAX_FRAME_BYTES), (0, 0)])
    await link._sender.write_all(size.to_bytes(4, "big") + bytes(num))
    eve.told["sent"] += 1
    async with asyncio.timeout(5):
        await link._connection.closed()


@act("bombs", keys=2, stays=False)
async def bombs(eve: Eve, link: Any) -> None:
    """Answers that are more than they seem, to greetings, so that she comes again and again, and to pulls."""
    other = encode(announce(bytes(32), seal(link.wire.key, bytes(32), 1, now_ms(), bodies(link.wire.key, 0, 250))))
    zeros, many = pack(bytes(MAX_BATCH_BYTES)), pack_batch([other] * 511, MAX_BATCH_BYTES)
    large, torn = pack(bytes(8 * MAX_BATCH_BYTES)), many[: len(many) // 2]
    options = [(zeros,), (many,), (large,), (torn,), (many + b"!",), (b"", 1, 1 << 63), (b"x", 1, MAX_BATCH_BYTES)]
    link.wire.answer = lambda asked: given(*eve.any(options))
    await link.send([frames.write(Push(SWARM, encode(announced(eve, link, bodies(link.wire.key, 0, 2)))))])
    await asyncio.sleep(2)


@act("lists", keys=2, stays=False)
async def lists(eve: Eve, link: Any) -> None:
    """Long announcements that nobody signed, in answer to greetings."""
    key, ref, at = link.wire.key, bodies(link.wire.key, 0, 1)[0].task, now_ms()
    made = [
        Announcement(key.id, SWARM, n, at + n, tuple(Entry(i, ref, 8, 0) for i in names(eve, 256))) for n in range(64)
    ]
    link.wire.answer = lambda asked: given(pack_batch(map(encode, made), MAX_BATCH_BYTES))
    await asyncio.sleep(2)


@act("records", keys=2, stays=False)
async def records(eve: Eve, link: Any) -> None:
    """As many records as are listened to, true and false ones, and then the same under another name."""
    for kind in (*[Known] * 8, Bye):
        await link.send([frames.write(kind(tuple(a_record(eve) for _ in range(8))))])
        eve.told["sent"] += 8
    await link._connection.closed()
