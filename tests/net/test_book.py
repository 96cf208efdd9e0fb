"""The address book: only its owner's word counts, for as long as it holds, and there is room for so many."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from waggle.core.keys import Key
from waggle.core.rng import rng_for
from waggle.core.types import Peer
from waggle.net import book as module
from waggle.net.book import LIFE_S, SKEW_S, Book, Record, signed

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS / 1000
KEYS = [Key.from_seed(bytes([number]) * 32) for number in range(1, 9)]
ME = Key.from_seed(bytes(32)).id


def full(num: int, file: Path | None = None) -> Book:
    made = Book(ME, file)
    for number, key in enumerate(KEYS[:num]):
        assert made.add(signed(key, f"192.0.2.{number}:7", NOW_MS), NOW_MS, rng_for("add"))
    return made


def test_the_newest_word_of_its_owner_counts() -> None:
    book, key = Book(ME), KEYS[0]
    old, new = signed(key, "a:1", NOW_MS), signed(key, "b:2", NOW_MS + 5)
    assert [book.add(r, NOW_MS, rng_for(1)) for r in (old, old, new, old)] == [True, False, True, False]
    assert book.get(key.id) == Peer(key.id, "b:2")
    assert not book.counts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"address": "evil:1"}, "signature"),
        ({"peer": KEYS[1].id}, "signature"),
        ({"signature": b""}, "signature"),
        ({"expires_ms": NOW_MS}, "expired"),
        ({"made_ms": NOW_MS + 1000 * SKEW_S + 1}, "future"),
        ({"expires_ms": NOW_MS + 1000 * LIFE_S + 1}, "future"),
    ],
)
def test_a_record_that_does_not_hold_is_refused_and_counted(change: dict[str, object], reason: str) -> None:
    book = Book(ME)
    bad: Record = replace(signed(KEYS[0], "a:1", NOW_MS), **change)
    assert not book.add(bad, NOW_MS, rng_for(1))
    assert (len(book), dict(book.counts)) == (0, {reason: 1})


def test_two_stories_of_one_time_are_told_and_the_first_is_kept() -> None:
    book = full(1)
    assert not book.add(signed(KEYS[0], "elsewhere:1", NOW_MS), NOW_MS, rng_for(1))
    assert not book.add(replace(signed(KEYS[0], "forged:1", NOW_MS), signature=b""), NOW_MS, rng_for(1))
    assert dict(book.counts) == {"two-stories": 1}
    assert book.get(KEYS[0].id) == Peer(KEYS[0].id, "192.0.2.0:7")


def test_my_own_record_has_no_place_in_my_book() -> None:
    book = Book(KEYS[0].id)
    assert not book.add(signed(KEYS[0], "a:1", NOW_MS), NOW_MS, rng_for(1))
    assert KEYS[0].id not in book


def test_records_expire() -> None:
    book = full(3)
    assert len(book.draw(9, rng_for(1), NOW_S + LIFE_S - 1)) == 3
    assert book.draw(9, rng_for(1), NOW_S + LIFE_S) == []
    assert len(book) == 0


def test_a_full_book_forgets_at_random_but_not_the_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORDS", 4)
    kept = set()
    for seed in range(20):
        book = full(4)
        assert book.add(signed(KEYS[7], "new:1", NOW_MS), NOW_MS, rng_for(seed))
        assert len(book) == 4
        assert KEYS[7].id in book
        kept.add(frozenset(key.id for key in KEYS[:4] if key.id in book))
    assert len(kept) > 1


def test_who_fails_rests_twice_as_long_each_time_and_a_new_address_is_a_new_try() -> None:
    book = full(1)
    key = KEYS[0]

    def ready(after_s: float) -> bool:
        return bool(book.draw(1, rng_for(1), NOW_S + after_s))

    book.failed(key.id, NOW_S)
    assert [ready(s) for s in (1.9, 2.0)] == [False, True]
    book.failed(key.id, NOW_S)
    assert [ready(s) for s in (3.9, 4.0)] == [False, True]
    assert book.add(signed(key, "moved:1", NOW_MS + 1), NOW_MS, rng_for(1))
    assert ready(0)
    book.failed(key.id, NOW_S)
    book.worked(key.id)
    assert ready(0)


def test_draws_leave_out_whom_they_are_told_to() -> None:
    book = full(5)
    assert {peer.id for peer in book.draw(9, rng_for(1), NOW_S, {KEYS[0].id})} == {key.id for key in KEYS[1:5]}
    assert len(book.draw(2, rng_for(1), NOW_S)) == 2
    assert len(book.sample(2, rng_for(1))) == 2
    assert {record.peer for record in book.sample(9, rng_for(1))} == {key.id for key in KEYS[:5]}


def test_it_lives_on_disk(tmp_path: Path) -> None:
    full(3, tmp_path / "book.bin").save()
    again = Book(ME, tmp_path / "book.bin")
    again.load(NOW_MS, rng_for(1))
    assert len(again) == 3
    later = Book(ME, tmp_path / "book.bin")
    later.load(NOW_MS + 1000 * LIFE_S, rng_for(1))
    assert (len(later), later.counts["expired"]) == (0, 3)
    (tmp_path / "book.bin").write_bytes(b"junk")
    damaged = Book(ME, tmp_path / "book.bin")
    damaged.load(NOW_MS, rng_for(1))
    assert (len(damaged), damaged.counts["damaged-book"]) == (0, 1)
    none = Book(ME, tmp_path / "none.bin")
    none.load(NOW_MS, rng_for(1))
    assert len(none) == 0
    Book(ME).save()
