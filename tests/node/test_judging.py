"""A judge and those who would cheat: what is replayed, late, another's or changed is refused, and shows in the log."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.node.parts import charter_of, keys
from waggle.core.codec import digest
from waggle.core.sealing import charter_digest
from waggle.core.types import TaskRef
from waggle.node.judge import rules_of
from waggle.node.judging import (
    ANSWER_MS,
    Bench,
    Board,
    Judged,
    Refused,
    Rules,
    Why,
    ask_of,
    check,
    examine,
    reply_of,
    signed_bytes,
)
from waggle.tasks.families import family
from waggle.tasks.grade import Graders

JUDGE, ALICE, EVE = keys(3)
MODEL = b"m" * 32
FAMILIES = (
    family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, max_tokens=6),
    family("spell_backward", {"min_word_len": 3, "max_word_len": 5}, max_tokens=12),
)
CHARTER = charter_of(FAMILIES)
ID = charter_digest(CHARTER)


@pytest.fixture(scope="module")
def rules() -> Rules:
    return rules_of(CHARTER, Graders(FAMILIES, workers=0))


@pytest.fixture
def bench(rules: Rules) -> Bench:
    return Bench(JUDGE, rules)


def judged(bench: Bench, number: int = 1, text: str | None = None, who: Any = ALICE, now_ms: int = 1000) -> Judged:
    """A question asked and answered; right where no answer is given here."""
    challenge = bench.ask(ask_of(who, ID, MODEL, number, 7), now_ms)
    answer = truth(bench, challenge.ask) if text is None else text
    return bench.reply(reply_of(who, challenge, answer), now_ms + 1)


def truth(bench: Bench, ask: Any) -> str:
    """What the judge knows."""
    from waggle.node.judging import seed_of

    return bench.rules.draw(seed_of(JUDGE.sign(signed_bytes(ask)))).truth


def refused(bench: Bench, why: Why, act: Callable[[], Any]) -> None:
    before = bench.refused[why]
    with pytest.raises(Refused) as caught:
        act()
    assert caught.value.reason == why
    assert bench.refused[why] == before + 1


def test_right_is_one_wrong_is_none_and_both_hold(bench: Bench, rules: Rules) -> None:
    log = [judged(bench, 1), judged(bench, 2, "no idea"), judged(bench, 3), judged(bench, 4, who=EVE)]
    assert [one.reward for one in log] == [1.0, 0.0, 1.0, 1.0]
    board, faults = check(log, rules)
    assert faults == []
    best, second = board.places()
    assert (best.peer, best.asked, best.right) == (ALICE.id, 3, 2.0)
    assert (second.peer, second.rate) == (EVE.id, 1.0)


def test_questions_are_held_out_differ_and_follow_from_who_asks(rules: Rules) -> None:
    refs = set()
    for who in (ALICE, EVE):
        for number in range(20):
            one = judged(Bench(JUDGE, rules), number, who=who)
            assert one.ref == judged(Bench(JUDGE, rules), number, who=who).ref
            refs.add(one.ref)
    assert len(refs) == 40
    assert len({ref.env for ref in refs}) == 2


def test_the_question_cannot_be_told_from_the_challenge(bench: Bench) -> None:
    challenge = bench.ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    ref = bench.reply(reply_of(ALICE, challenge, "x"), 1).ref
    from waggle.core.codec import encode

    assert ref.seed.to_bytes(8, "big") not in encode(challenge)


def test_an_answer_is_taken_once(bench: Bench) -> None:
    challenge = bench.ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    reply = reply_of(ALICE, challenge, "1")
    bench.reply(reply, 1)
    refused(bench, Why.ANSWERED, lambda: bench.reply(reply, 2))
    refused(bench, Why.ANSWERED, lambda: bench.reply(reply_of(ALICE, challenge, "2"), 2))


def test_an_answer_is_taken_in_time_and_what_is_not_answered_is_wrong(bench: Bench, rules: Rules) -> None:
    challenge = bench.ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    assert bench.overdue(ANSWER_MS) == []
    refused(bench, Why.LATE, lambda: bench.reply(reply_of(ALICE, challenge, "1"), ANSWER_MS + 1))
    (late,) = bench.overdue(ANSWER_MS + 1)
    assert (late.reply, late.reward, examine(late, rules)) == (None, 0.0, None)
    refused(bench, Why.ANSWERED, lambda: bench.reply(reply_of(ALICE, challenge, "1"), ANSWER_MS + 2))
    board = Board()
    board.add(late)
    (place,) = board.places()
    assert (place.asked, place.answered, place.rate) == (1, 0, 0.0)


def test_nobody_answers_for_another(bench: Bench) -> None:
    challenge = bench.ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    refused(bench, Why.SIGNATURE, lambda: bench.reply(reply_of(EVE, challenge, "1"), 1))
    honest = reply_of(ALICE, challenge, "1")
    refused(bench, Why.SIGNATURE, lambda: bench.reply(replace(honest, text="2"), 1))
    assert bench.reply(honest, 2).reply == honest


def test_nobody_asks_for_another_and_no_wish_is_granted_twice(bench: Bench) -> None:
    wish = ask_of(ALICE, ID, MODEL, 1, 0)
    for changed in (
        replace(wish, peer=EVE.id),
        replace(wish, model=b"x" * 32),
        replace(wish, round=9),
        replace(wish, number=2),
    ):
        refused(bench, Why.SIGNATURE, lambda changed=changed: bench.ask(changed, 0))
    refused(bench, Why.OTHER_CHARTER, lambda: bench.ask(ask_of(ALICE, b"o" * 32, MODEL, 1, 0), 0))
    challenge = bench.ask(wish, 0)
    refused(bench, Why.ASKED_BEFORE, lambda: bench.ask(wish, 1))
    refused(bench, Why.TOO_MANY, lambda: bench.ask(ask_of(ALICE, ID, MODEL, 2, 0), 1))
    bench.reply(reply_of(ALICE, challenge, "1"), 2)
    refused(bench, Why.ASKED_BEFORE, lambda: bench.ask(wish, 3))
    bench.ask(ask_of(ALICE, ID, MODEL, 2, 0), 3)


def test_members_only_means_members_only(rules: Rules) -> None:
    bench = Bench(JUDGE, Rules(rules.charter, rules.draw, rules.grade, lambda peer: peer == ALICE.id))
    bench.ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    refused(bench, Why.NOT_MEMBER, lambda: bench.ask(ask_of(EVE, ID, MODEL, 1, 0), 0))


def test_an_answer_to_no_question_is_refused(bench: Bench, rules: Rules) -> None:
    other = Bench(EVE, rules).ask(ask_of(ALICE, ID, MODEL, 1, 0), 0)
    refused(bench, Why.UNKNOWN, lambda: bench.reply(reply_of(ALICE, other, "1"), 1))


def resigned(one: Judged) -> Judged:
    """Signed again by a judge who lies."""
    return replace(one, signature=JUDGE.sign(signed_bytes(one)))


def test_whatever_is_changed_in_a_log_shows(bench: Bench, rules: Rules) -> None:
    one = judged(bench)
    challenge, ref = one.challenge, one.ref
    other = judged(bench, 2)
    assert one.reply is not None
    assert examine(one, rules) is None
    changed = [
        (replace(one, reward=0.0), Why.SIGNATURE),
        (replace(one, judged_ms=5), Why.SIGNATURE),
        (replace(one, reply=replace(one.reply, text="9")), Why.SIGNATURE),
        (replace(one, challenge=replace(challenge, until_ms=1 << 40)), Why.SIGNATURE),
        (replace(one, challenge=replace(challenge, ask=replace(challenge.ask, peer=EVE.id))), Why.SIGNATURE),
        (resigned(replace(one, reward=0.0)), Why.GRADE),
        (resigned(replace(one, reply=replace(one.reply, text="9"))), Why.SIGNATURE),
        (resigned(replace(one, ref=TaskRef(ref.env, ref.config, ref.seed, 0, ref.index + 1))), Why.QUESTION),
        (resigned(replace(one, salt=EVE.sign(signed_bytes(challenge.ask)))), Why.SIGNATURE),
        (resigned(replace(one, reply=other.reply)), Why.UNKNOWN),
        (resigned(replace(one, judged_ms=challenge.until_ms + 1)), Why.LATE),
        (resigned(replace(one, reply=None, reward=0.0)), Why.LATE),
    ]
    for lie, why in changed:
        found = examine(lie, rules)
        assert found is not None, why
        assert found[0] == why, found
    moved = replace(challenge, ask=replace(challenge.ask, charter=b"o" * 32))
    assert (examine(resigned(replace(one, challenge=moved)), rules) or [None])[0] == Why.SIGNATURE


def test_an_easier_question_than_the_one_that_follows_shows(bench: Bench, rules: Rules) -> None:
    one = judged(bench)
    easy = replace(one.challenge, prompt=(replace(one.challenge.prompt[-1], content="1 + 1 ="),))
    easy = replace(easy, signature=JUDGE.sign(signed_bytes(easy)))
    lie = resigned(replace(one, challenge=easy, reply=reply_of(ALICE, easy, "2"), reward=1.0))
    found = examine(lie, rules)
    assert found is not None
    assert found[0] == Why.QUESTION


def test_a_judgement_counts_once_and_only_what_holds_counts(bench: Bench, rules: Rules) -> None:
    one, other = judged(bench, 1), judged(bench, 2)
    board, faults = check([one, one, resigned(replace(other, reward=0.0)), other], rules)
    assert [(line, why) for line, why, _ in faults] == [(2, Why.DOUBLE), (3, Why.GRADE), (4, Why.DOUBLE)]
    (place,) = board.places()
    assert place.asked == 1


def test_the_board_is_led_by_who_is_surely_good(bench: Bench) -> None:
    for number in range(20):
        judged(bench, number, None if number < 16 else "no")
    board = Board()
    fresh = Bench(JUDGE, bench.rules)
    board.add(judged(fresh, 1, who=EVE))
    for number in range(20):
        board.add(judged(fresh, number, None if number < 16 else "no"))
    assert [place.peer for place in board.places()] == [ALICE.id, EVE.id]
    assert digest(CHARTER) != ID
