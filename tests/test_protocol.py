"""docs/protocol.md says what the program does, the conformance kit is the program's, and a client of neither works."""

import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import inspect

from conformance.generate import FILE, generate
from conformance.live import NO_NETWORK
from conformance.world import LETTERS, ME, NOW_MS, World
from waggle.core import blob, types
from waggle.core.codec import decode, digest, encode
from waggle.core.errors import ConfigError, DecodeError, NetworkError
from waggle.core.keys import Key, peer_name, verify
from waggle.core.rng import rng_for
from waggle.core.sealing import announcement_head, charter_digest, rebuild
from waggle.core.types import Announcement, Answers, Charter, Experience
from waggle.net import blobs, book, frames, iroh, iroh_link, overlay, reach, terms, transport
from waggle.node import exchange
from waggle.swarm import admission, batch, charter
from waggle.tasks import gym, questions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/protocol.md").read_text("utf-8")
PEER = ROOT / "examples/peer.py"
VECTORS: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
NOUNS = [
    *(types.Charter, types.Family, types.Admission, types.Ticket, book.Record, frames.Frame, *get_args(frames.Said)),
    *(frames.Request, types.TaskRef, types.Body, types.PolicyRef, types.Sampling, types.Completion, types.Text),
    *(types.Blob, types.Tokens, types.Seal, types.Experience, types.Announcement, types.Entry, exchange.Pull),
    *(types.Answers, blob.Manifest, blobs.Ask, blobs.Contents, blobs.Piece, reach.DialBack),
]
PROTOCOL = re.compile(r"""["'](waggle/(?:[a-z-]+/)?\d+)(?:\\0)?["']""")
"""Names with versions: of requests, of what is signed, and the ALPN."""


def rows_of(heading: str) -> Iterator[list[str]]:
    """Rows of the tables of a section, without those above the line."""
    section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    assert section, heading
    for table in re.findall(r"^\|[-:| ]+\|\n((?:\|.*\n)+)", section, re.M):
        yield from ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())


def on_page() -> dict[str, list[tuple[str, str]]]:
    """Nouns as the page has them, by their first lines."""
    found: dict[str, list[tuple[str, str]]] = {}
    title = ""
    for block in re.findall(r"^```nouns\n(.*?)^```", PAGE, re.M | re.S):
        for line in filter(None, block.splitlines()):
            if line.startswith("  "):
                name, kind = re.split(r"\s{2,}", line.strip())[:2]
                found[title].append((name, kind))
            else:
                title = line
                assert title not in found
                found[title] = []
    return found


def bounds(least: float | None, most: float | None) -> str:
    if most is None:
        return ""
    return f" {most:.0f}" if least == most else f" {least or 0:.0f}..{most:.0f}"


def written(kind: inspect.Type) -> str:
    """A field's type in the page's words."""
    if isinstance(kind, inspect.IntType):
        return "count" if (kind.ge, kind.le) == (0, 2**53) else f"int{bounds(kind.ge, kind.le)}"
    if isinstance(kind, inspect.FloatType):
        return f"float{bounds(kind.ge, kind.le)}"
    if isinstance(kind, inspect.StrType | inspect.BytesType):
        name = "text" if isinstance(kind, inspect.StrType) else "bytes"
        return name + bounds(kind.min_length, kind.max_length)
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f'"{value}"' for value in sorted(kind.values))
    if isinstance(kind, inspect.VarTupleType):
        inner = written(kind.item_type)
        return f"list{bounds(kind.min_length, kind.max_length)} of {f'({inner})' if ' or ' in inner else inner}"
    if isinstance(kind, inspect.UnionType):
        return " or ".join(sorted((written(one) for one in kind.types), key=str.lower))
    if isinstance(kind, inspect.StructType):
        return kind.cls.__name__
    return {inspect.BoolType: "bool", inspect.NoneType: "none"}[type(kind)]


def test_every_noun_is_on_the_page_as_it_is() -> None:
    page = on_page()
    for noun in NOUNS:
        info: Any = inspect.type_info(noun)
        title = f'{noun.__name__}, tag "{info.tag}"' if info.tag else noun.__name__
        assert page.pop(title) == [(f.name, written(f.type)) for f in info.fields], title
    assert not page
    modules = (book, frames, blobs, reach, exchange)
    kinds = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    sent = {one for one in kinds if issubclass(one, types.Noun) and not one.__name__.startswith("_")}
    assert sent <= {*NOUNS, types.Noun, types.Peer}


def test_links_on_the_page_lead_somewhere() -> None:
    for page in (ROOT / "docs/protocol.md", ROOT / "conformance/README.md"):
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), link


def test_every_reason_frame_and_protocol_is_on_the_page() -> None:
    assert {row[1].strip("`") for row in rows_of("14.")} == {str(reason) for reason in admission.Reason}
    named = {name for file in (ROOT / "src").rglob("*.py") for name in PROTOCOL.findall(file.read_text("utf-8"))}
    assert {exchange.PULL, exchange.RECENT, blobs.PROTO, reach.PROTO, iroh.ALPN.decode()} <= named
    for name in (*named, charter.PREFIX):
        assert f"`{name}`" in PAGE, name
    for why in ("this node is of another swarm", "the swarm is for members only", overlay.NO_ROOM):
        assert f"`{why}`" in PAGE
    asked = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows_of("Annex B") if len(row) == 2}
    assert asked == questions._ASKED
    for env in questions._ARITHMETIC | questions._WHOLE:
        assert f"`{env}`" in PAGE.partition("## Annex B")[2]


def code() -> dict[str, Any]:
    """The page's Python, run."""
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)), names)
    return names


def hexed(value: Any) -> Any:
    """What `0x` texts and lists of them stand for."""
    if isinstance(value, str) and value.startswith("0x"):
        return bytes.fromhex(value[2:])
    return [hexed(one) for one in value] if isinstance(value, list) else value


def of(text: str) -> bytes:
    return bytes.fromhex(text)


def check_draws(names: dict[str, Any]) -> None:
    """Seeds, draws, buckets, orders and trees by another implementation."""
    weights = [family[9] for family in VECTORS["charter"]["fields"][1]]
    for row in VECTORS["seeds"]["seeds"]:
        assert names["seed_for"](*hexed(row["purpose"])) == row["seed"]
    for row in VECTORS["seeds"]["units"]:
        assert names["unit"](row["key"], row["position"]) == row["unit"]
    for row in VECTORS["draws"]:
        _, config, seed, epoch, index = row["ref"]
        place, drawn = names["draw"](of(VECTORS["charter"]["digest"]), 0.25, weights, of(row["author"]), epoch, index)
        assert (f"0x{VECTORS['charter']['families'][place]}", drawn) == (config, seed)


def test_the_python_on_the_page_computes_what_the_program_does() -> None:
    names = code()
    check_draws(names)
    for row in VECTORS["questions"]:
        assert names["bucket"](of(row["digest"])) == row["bucket"]
    for row in VECTORS["orders"]["orders"]:
        assert names["order"](row["seed"], row["lap"], row["n"]) == row["order"]
    for seed, lap, n in [(3, 0, 1), (2**53 - 5, 7, 2), (12, 2, 4097)]:
        assert names["order"](seed, lap, n) == rng_for("file order", seed, lap).permutation(n).tolist()
    for row in VECTORS["trees"]["good"]:
        leaves = [of(leaf) for leaf in row["leaves"]]
        assert names["root"](leaves) == of(row["root"])
        for index, path in enumerate(row["paths"]):
            assert names["path"](leaves, index) == hexed([f"0x{one}" for one in path])
            assert names["root_from"](leaves[index], index, len(leaves), [*map(of, path)]) == of(row["root"])
    for row in VECTORS["trees"]["bad"]:
        assert names["root_from"](b"x" * 32, row["index"], row["size"], [*map(of, row["path"])]) is None
    for row in VECTORS["nouns"]["good"]:
        assert names["digest"](row["noun"], names["encode"](hexed(row["fields"]))) == of(row["digest"])


@pytest.mark.slow
def test_the_kit_is_what_the_generator_writes() -> None:
    if gym.version() != "0.1.25":
        pytest.skip("the vectors' questions are of ReasoningGYM 0.1.25")
    assert generate() == FILE.read_text("utf-8"), "run: python -m conformance.generate"


def test_keys_nouns_and_charter() -> None:
    for row in VECTORS["keys"]:
        key = Key.from_seed(of(row["seed"]))
        assert (key.id.hex(), peer_name(key.id)) == (row["id"], row["name"])
        assert verify(key.id, of(row["message"]), of(row["signature"]))
    kinds = {noun.__name__: noun for noun in NOUNS}
    for row in VECTORS["nouns"]["good"]:
        assert digest(decode(kinds[row["noun"]], of(row["hex"]))).hex() == row["digest"]
    for row in VECTORS["nouns"]["bad"]:
        with pytest.raises(DecodeError) as caught:
            decode(kinds[row["noun"]], of(row["hex"]))
        assert caught.value.reason == row["reason"], row
    made = decode(Charter, of(VECTORS["charter"]["hex"]))
    assert charter_digest(made).hex() == VECTORS["charter"]["digest"]
    assert verify(made.founder, of(VECTORS["charter"]["signed"]), made.signature)


def test_tickets_and_records() -> None:
    for row in VECTORS["tickets"]["good"]:
        ticket = charter.read_ticket(row["text"], NOW_MS)
        assert charter_digest(ticket.charter).hex() == row["digest"]
        assert [transport.address_text(transport.read_address(one)) for one in ticket.addresses] == row["addresses"]
        assert charter.read_ticket(charter.ticket_text(ticket)) == ticket
    for row in VECTORS["tickets"]["bad"]:
        with pytest.raises(ConfigError):
            charter.read_ticket(row["text"], NOW_MS)
    for row in VECTORS["records"]:
        known = book.Book(ME.id)
        kept = known.add(decode(book.Record, of(row["hex"])), NOW_MS, rng_for("records"))
        assert ("kept" if kept else next(iter(known.counts))) == row["verdict"], row


def test_frames_handshakes_and_requests() -> None:
    for row in VECTORS["frames"]["good"]:
        assert frames.write(frames.read(of(row["hex"]))).hex() == row["hex"]
    for row in VECTORS["frames"]["bad"]:
        with pytest.raises(NetworkError):
            frames.read(of(row["hex"]))
    for row in VECTORS["handshakes"]:
        hello = frames.read(of(row["hello"]))
        assert isinstance(hello, frames.Hello)
        mine = terms.Terms(of(row["network"]), (2, 1), lambda peer, row=row: not row["members_only"])
        assert mine.objection(hello.record.peer, hello) == row["why"]
        assert row["version"] == (0 if row["why"] else mine.version(hello.speaks))
    for row in VECTORS["requests"]:
        assert of(row["writes"])[:1] == iroh_link.REQUEST
        assert decode(frames.Request, of(row["writes"])[1:]).proto.startswith("waggle/")
        assert (
            int.from_bytes(of(row["reads"])[1 : iroh_link.REPLY_HEAD], "big")
            == len(of(row["reads"])) - iroh_link.REPLY_HEAD
        )


def test_experience_and_how_it_travels() -> None:
    kit = VECTORS["round"]
    news = decode(Announcement, of(kit["announcement"]))
    assert announcement_head(news).hex() == kit["head"]
    assert transport.message_id(news.charter, encode(news)).hex() == kit["message_id"]
    asked = [None, *range(3)]
    for data, whole in zip(batch.unpack_batch(of(kit["pull_reply"]), 1 << 20, 3), kit["experiences"], strict=True):
        answers = decode(Answers, data)
        line = asked[answers.number]
        assert line is not None
        assert encode(rebuild(news, line, answers) or answers).hex() == whole
    for row in kit["wrong_answers"]:
        answers = decode(Answers, of(row["hex"]))
        line = asked[answers.number]
        assert line is None or rebuild(news, line, answers) is None, row
    for row in VECTORS["batches"]:
        try:
            verdict = "good" if batch.unpack_batch(of(row["hex"]), 1 << 23, row["most"]) is not None else ""
        except DecodeError as error:
            verdict = error.reason
        assert verdict == row["verdict"], row


def test_admission_says_what_the_kit_says() -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for row in VECTORS["admission"]:
            view = world.view()
            for earlier in row["after"]:
                assert isinstance(admission.screen(of(earlier), view, NOW_MS), admission.Screened)
            late_ms = max(NOW_MS, decode(Experience, of(row["after"][0])).seal.created_ms) if row["after"] else NOW_MS
            result = admission.screen(of(row["hex"]), view, late_ms)
            verdict = result.reason if isinstance(result, admission.Refusal) else "admitted"
            assert verdict == row["verdict"], (row["why"], result)
        for row in VECTORS["announcements"]:
            news = admission.screen_announcement(of(row["hex"]), of(row["sender"]), world.view(), NOW_MS)
            if isinstance(news, Announcement):
                refusal = admission.check_signature(news, world.view())
                assert (refusal.reason if refusal else "good") == row["verdict"], row
            else:
                assert news.reason == row["verdict"], row
    told = {row["verdict"] for row in (*VECTORS["admission"], *VECTORS["announcements"], *VECTORS["batches"])}
    untold = {"task", "ungraded", "not-member", "quarantined"}  # of what the kit's swarm and receiver have not
    assert {str(reason) for reason in admission.Reason} - told == untold


def test_blobs() -> None:
    contents = {"": b"", "hello": b"hello", "1 MiB and a byte, all zero": bytes(blob.CHUNK_BYTES + 1)}
    for row in VECTORS["blobs"]["blobs"]:
        assert decode(blob.Manifest, of(row["manifest"])).id.hex() == row["id"]
        assert blob.blob_id(contents[row["content"]]).hex() == row["id"]
    for row in VECTORS["blobs"]["asks"]:
        decode(blobs.Ask, of(row["hex"]), blobs._MAX_ASK_BYTES)
    for text in VECTORS["blobs"]["bad_manifests"]:
        with pytest.raises(DecodeError):
            decode(blob.Manifest, of(text))
    assert VECTORS["orders"]["file"] == LETTERS


def test_the_example_client_agrees_with_the_kit() -> None:
    assert "waggle" not in {
        word.split(".")[0] for word in re.findall(r"^(?:import|from) (\S+)", PEER.read_text(), re.M)
    }
    peer = runpy.run_path(str(PEER))
    peer["Swarm"].__init__.__globals__["now_ms"] = lambda: NOW_MS
    for row in VECTORS["tickets"]["good"]:
        swarm = peer["Swarm"](row["text"])
        assert swarm.id.hex() == row["digest"]
    for row in VECTORS["draws"]:
        ref = hexed(row["ref"])
        assert swarm.ref_at(of(row["author"]), ref[3], ref[4]) == ref
    for row in VECTORS["questions"]:
        if row.get("family") == 0:
            ref = ["chain_sum", swarm.configs[0], row["seed"], 0, row["index"]]
            assert swarm.truth_of(ref) == (row["truth"] if row["bucket"] == "train" else None)
    for row in VECTORS["nouns"]["bad"]:
        if row["reason"] in ("version", "not-canonical") and not re.search("usual|float belongs", row["why"]):
            with pytest.raises(ValueError, match=row["reason"]):
                peer["decode"](of(row["hex"]))
    check_news_and_answers(peer, swarm)


def check_news_and_answers(peer: dict[str, Any], swarm: Any) -> None:
    for row in VECTORS["announcements"]:
        refused = False
        try:
            swarm.check_news(peer["decode"](of(row["hex"])), of(row["sender"]))
        except Exception:
            refused = True
        assert refused == (row["verdict"] not in ("good", "own")), row
    kit = VECTORS["round"]
    news = peer["decode"](of(kit["announcement"]))
    for data in peer["unbatch"](of(kit["pull_reply"]), 3):
        answers = peer["decode"](data)
        body = peer["body_of"](news, answers, answers[0] - 1)
        assert peer["encode"](body).hex() == kit["bodies"][answers[0] - 1]["hex"]


LIVE = ("--seconds", "30", "--until", "read", sys.executable, str(PEER), "TICKET", "--bind", "127.0.0.1:0")


@pytest.mark.slow
def test_a_client_that_was_written_from_the_page_joins_gives_and_takes() -> None:
    command = [sys.executable, "-m", "conformance.live", *LIVE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    if done.returncode == NO_NETWORK:
        pytest.skip("this system gives processes no network of their own, and real connections are tested only in one")
    assert done.returncode == 0, (done.stdout, done.stderr)
    outcome = json.loads(done.stdout)
    client = re.search(r"online id=(\w+)", "\n".join(outcome["said"]))
    assert client
    assert {*outcome["heard"]} == {*outcome["admitted"]} == {*outcome["used"]} == {client[1]}
    assert outcome["refused"] == {}
    assert {exchange.PULL, exchange.RECENT} <= {*outcome["asked"]}
    read = [line for line in outcome["said"] if line.startswith("read ")]
    assert read
    assert all(re.search(r"right=[1-3]/4$", line) for line in read), read
    assert not [line for line in outcome["said"] if line.startswith(("ended", "Traceback"))]
