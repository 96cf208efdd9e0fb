"""Seals, announcements and charters: what a signature covers, so that nothing else passes for it."""

import msgspec
import pytest

from waggle.core.codec import decode, digest, encode
from waggle.core.keys import Key, verify
from waggle.core.sealing import (
    announce,
    announcement_head,
    answers_of,
    charter_digest,
    charter_is_signed,
    found,
    rebuild,
    seal,
    seal_head,
)
from waggle.core.types import (
    Admission,
    Answers,
    Blob,
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

KEY, OTHER = Key.from_seed(b"1" * 32), Key.from_seed(b"2" * 32)
CHARTER = b"c" * 32
REF = TaskRef("chain_sum", b"f" * 32, 5, 0, 17)
replace = msgspec.structs.replace
TOKENS = Tokens(b"t" * 32, (28, 2), bytes(8))
PICTURE = Blob(b"p" * 32, "image/png", 8192)


def body(number: int) -> Body:
    answers = (Completion((Text("7"),), "stop"), Completion((Text("8"),), "stop"))
    return Body(replace(REF, index=number), PolicyRef("m", b"w" * 32, 3), Sampling(), answers, KEY.id, 12)


def sealed(size: int) -> list[Experience]:
    return seal(KEY, CHARTER, 12, 1000, [body(number) for number in range(size)])


def is_signed(experience: Experience, charter: bytes = CHARTER) -> bool:
    head = seal_head(charter, experience, digest(experience.body))
    return head is not None and verify(experience.body.author, head, experience.seal.signature)


@pytest.mark.parametrize("size", [1, 2, 6, 7])
def test_every_experience_of_a_round_carries_its_proof(size: int) -> None:
    for experience in sealed(size):
        assert is_signed(decode(Experience, encode(experience)))


def changes() -> dict[str, Experience]:
    e = sealed(5)[2]
    b, s = e.body, e.seal
    other = seal(OTHER, CHARTER, 12, 1000, [body(2)])[0]
    return {
        "round": replace(e, body=replace(b, round=13)),
        "author": replace(e, body=replace(b, author=OTHER.id)),
        "task": replace(e, body=replace(b, task=replace(b.task, index=3))),
        "answer": replace(e, body=replace(b, completions=b.completions[::-1])),
        "time": replace(e, seal=replace(s, created_ms=1001)),
        "size": replace(e, seal=replace(s, size=6)),
        "index": replace(e, seal=replace(s, index=3)),
        "path": replace(e, seal=replace(s, path=s.path[::-1])),
        "no path": replace(e, seal=replace(s, path=())),
        "signature": replace(e, seal=replace(s, signature=bytes(64))),
        "short signature": replace(e, seal=replace(s, signature=b"")),
        "another's signature": replace(e, seal=replace(s, signature=other.seal.signature)),
        "another place": replace(e, seal=sealed(5)[3].seal),
    }


@pytest.mark.parametrize("what", changes())
def test_a_changed_experience_is_not_signed(what: str) -> None:
    assert not is_signed(changes()[what])


def test_a_seal_holds_for_one_charter() -> None:
    assert not is_signed(sealed(1)[0], b"d" * 32)


def test_an_announcement_is_signed_once_for_all() -> None:
    experiences = sealed(6)
    news = announce(CHARTER, experiences)
    assert verify(news.author, announcement_head(news), news.signature)
    assert news.signature == experiences[0].seal.signature
    assert [entry.id for entry in news.entries] == [digest(e.body) for e in experiences]
    assert [entry.size_bytes for entry in news.entries] == [len(encode(e)) for e in experiences]


@pytest.mark.parametrize("size", [1, 2, 6, 7])
def test_answers_and_the_announcement_make_the_experience_again(size: int) -> None:
    experiences = sealed(size)
    news = announce(CHARTER, experiences)
    for index, experience in enumerate(experiences):
        assert rebuild(news, index, answers_of(3, experience.body)) == experience


@pytest.mark.parametrize(
    "completions",
    [
        (Completion((Text(""),), "stop"), Completion((), "length")),
        (Completion((Text("7"), Text("8")), "length", TOKENS), Completion((Text("78"),), "stop")),
        (Completion((PICTURE,), "stop"), Completion((Text("see"), PICTURE), "length")),
        (Completion((Text("7"),), "stop", TOKENS), Completion((Text("7"),), "length", replace(TOKENS, logprobs=b""))),
    ],
)
def test_whatever_a_completion_is_made_of_comes_back(completions: tuple[Completion, ...]) -> None:
    experience = seal(KEY, CHARTER, 12, 1000, [replace(body(0), completions=completions)])[0]
    answers = decode(Answers, encode(answers_of(0, experience.body)))
    assert rebuild(announce(CHARTER, [experience]), 0, answers) == experience


def test_answers_that_were_not_announced_make_nothing() -> None:
    news, first = announce(CHARTER, sealed(2)), answers_of(0, sealed(2)[0].body)
    assert rebuild(news, 0, replace(first, parts=first.parts[::-1])) is None
    assert rebuild(news, 0, replace(first, cut=(1,))) is None
    assert rebuild(news, 0, replace(first, tokens=(TOKENS,))) is None
    assert rebuild(news, 0, replace(first, tokens=(TOKENS, None))) is None
    assert rebuild(news, 0, replace(first, sampling=Sampling(seed=1))) is None
    assert rebuild(replace(news, round=13), 0, first) is None


def test_a_changed_announcement_is_not_signed() -> None:
    news = announce(CHARTER, sealed(3))
    for other in (
        replace(news, author=OTHER.id),
        replace(news, charter=b"d" * 32),
        replace(news, round=13),
        replace(news, created_ms=1001),
        replace(news, entries=news.entries[:2]),
        replace(news, entries=news.entries[::-1]),
        replace(news, signature=b""),
    ):
        assert not verify(other.author, announcement_head(other), other.signature)


FAMILY = Family("chain_sum", "reasoning-gym", "{}", "0.1.25", "reasoning-gym", 3, "", 8)
DRAFT = Charter("bees", (FAMILY,), 1, Admission(), 0.25, "CC-BY-4.0", (), b"?" * 32, 5)


def test_a_charter_is_signed_by_its_founder() -> None:
    charter = found(KEY, DRAFT)
    assert charter.founder == KEY.id
    assert charter_is_signed(charter)
    assert not charter_is_signed(replace(charter, name="wasps"))
    assert not charter_is_signed(replace(charter, founder=OTHER.id))
    assert not charter_is_signed(DRAFT)


def test_a_swarm_is_its_charter_and_founder() -> None:
    charter = found(KEY, DRAFT)
    assert charter_digest(charter) == charter_digest(replace(charter, signature=b""))
    assert charter_digest(charter) != charter_digest(found(OTHER, DRAFT))
    assert charter_digest(charter) != charter_digest(found(KEY, replace(DRAFT, created_ms=6)))
