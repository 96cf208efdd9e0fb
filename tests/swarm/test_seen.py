"""What admission remembers: bounded, forgotten oldest first, the same after a restart."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tests.swarm.world import ALICE, BOB, body, completion, replace, sealed
from waggle.core.codec import digest
from waggle.swarm.seen import Mark, Seen, answers_digest, draw_id, mark


def made(number: int, author: bytes = ALICE.id, round: int = 0, answers: bytes = b"", created_ms: int = 0) -> Mark:
    return Mark(digest_of("id", number), author, round, digest_of("draw", number), number // 10, created_ms, answers)


def digest_of(kind: str, number: int) -> bytes:
    return hashlib.sha256(f"{kind} {number}".encode()).digest()


def test_the_oldest_is_forgotten_in_every_respect() -> None:
    seen = Seen(capacity=3)
    for number in range(4):
        seen.add(made(number, answers=b"%d" % number, created_ms=number))
    assert len(seen) == 3
    gone, kept = made(0), made(3)
    assert (seen.has(gone.id), seen.has_drawn(gone.draw), seen.first(b"0")) == (False, False, None)
    assert (seen.has(kept.id), seen.has_drawn(kept.draw)) == (True, True)
    assert seen.first(b"3") is not None
    assert seen.num_sent(ALICE.id, 0) == 3


def test_nothing_is_left_of_what_was_forgotten() -> None:
    seen = Seen(capacity=2)
    for number in range(50):
        seen.add(made(number, author=digest_of("author", number), round=number, answers=b"a%d" % number))
    inside = [seen._marks, seen._draws, seen._answers, seen._latest, seen._num_sent]
    assert [len(part) for part in inside] == [2] * 5


def test_the_first_author_of_answers_stays_first() -> None:
    seen = Seen()
    seen.add(made(0, ALICE.id, answers=b"same"))
    seen.add(made(1, BOB.id, answers=b"same"))
    first = seen.first(b"same")
    assert first is not None
    assert first.author == ALICE.id


def test_the_latest_is_by_the_authors_time() -> None:
    seen = Seen()
    for number, created_ms in enumerate((5, 9, 7)):
        seen.add(made(number, created_ms=created_ms))
    latest = seen.latest(ALICE.id)
    assert latest is not None
    assert latest.created_ms == 9
    assert seen.latest(BOB.id) is None


def test_adding_twice_counts_once() -> None:
    seen = Seen()
    seen.add(made(0))
    seen.add(made(0))
    assert (len(seen), seen.num_sent(ALICE.id, 0)) == (1, 1)


AUTHORS = (ALICE.id, BOB.id, bytes(32))
ADDS = st.tuples(st.integers(0, 20), st.sampled_from(AUTHORS), st.sampled_from([b"", b"x", b"y"]), st.integers(0, 5))


@given(st.lists(ADDS, max_size=40))
def test_a_restart_remembers_the_same(adds: list[tuple[int, bytes, bytes, int]]) -> None:
    marks = [made(number, author, answers=given, created_ms=at_ms) for number, author, given, at_ms in adds]
    straight = Seen(capacity=5)
    for one in marks:
        straight.add(one)
    half = Seen(capacity=5)
    for one in marks[: len(marks) // 2]:
        half.add(one)
    resumed = Seen.restore(half.state(), marks[len(marks) // 2 :], capacity=5)
    assert resumed.state() == straight.state()
    assert len(straight) <= 5
    for author in AUTHORS:
        assert resumed.num_sent(author, 0) == straight.num_sent(author, 0)
        assert resumed.latest(author) == straight.latest(author)
    for number in range(21):
        assert resumed.has(made(number).id) == straight.has(made(number).id)
        assert resumed.has_drawn(made(number).draw) == straight.has_drawn(made(number).draw)
    assert [resumed.first(given) for given in (b"x", b"y")] == [straight.first(given) for given in (b"x", b"y")]


def test_a_mark_says_what_is_compared_later() -> None:
    (experience,) = sealed(body())
    one = mark(experience, digest(experience.body), bytes(32))
    assert (one.id, one.author, one.round) == (digest(experience.body), ALICE.id, 3)
    assert one.draw == draw_id(experience.body) != draw_id(replace(experience.body, author=BOB.id))
    assert one.answers == answers_digest(bytes(32), experience.body)


def test_answers_are_a_multiset_to_one_question() -> None:
    a, b, c = (completion(f"a rather long answer number {number}") for number in range(3))
    same = [body(completions=answers) for answers in ((a, b, c, c), (c, b, a, c))]
    assert len({answers_digest(bytes(32), one) for one in same}) == 1
    others = [body(completions=answers) for answers in ((a, b, c), (a, b, b, c), (a, a, a, b, c))]
    digests = {answers_digest(bytes(32), one) for one in (same[0], *others)}
    assert len(digests) == 4
    assert answers_digest(b"q" * 32, same[0]) not in digests


def test_what_may_coincide_has_no_digest() -> None:
    few = tuple(completion(text) for text in ("one long answer that many may give" * 2, "7", "7", "7"))
    short = tuple(completion(str(number)) for number in range(8))
    for answers in (few, short):
        assert answers_digest(bytes(32), body(completions=answers)) == b""
