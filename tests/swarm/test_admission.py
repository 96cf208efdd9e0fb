"""Admission: an honest group passes, and each rule refuses exactly what breaks it, for its own reason."""

import msgspec
import pytest

from tests.swarm import world
from tests.swarm.world import ALICE, BOB, CHARTER, CHARTER_ID, EOS, EVE, ME, NOW_MS, body, replace, sealed, sent, view
from waggle.core.codec import encode
from waggle.core.keys import Key, verify
from waggle.core.sealing import announce
from waggle.core.types import Announcement, Blob, Body, Completion, Group, Sampling, Text, Tokens, Verdict
from waggle.swarm import admission
from waggle.swarm.admission import (
    MIN_EPOCH_S,
    MIN_LOGPROB,
    Reason,
    Refusal,
    Screened,
    check_signature,
    finish,
    oversized,
    screen,
    screen_announcement,
)
from waggle.swarm.charter import new_charter
from waggle.swarm.seen import mark

GRADED = [Verdict(float(number % 2)) for number in range(8)]


def passed(data: bytes, to: admission.View, now_ms: int = NOW_MS) -> Screened:
    result = screen(data, to, now_ms)
    assert isinstance(result, Screened), result
    return result


def refused(data: bytes, to: admission.View, now_ms: int = NOW_MS) -> Refusal:
    result = screen(data, to, now_ms)
    assert isinstance(result, Refusal)
    assert result.detail
    return result


def test_an_honest_round_passes_and_becomes_groups() -> None:
    me = view()
    bodies = [body(number=number) for number in range(6)]
    for one, data in zip(bodies, sent(*bodies), strict=True):
        screened = passed(data, me)
        assert screened.body == one
        assert screened.size_bytes == len(data)
        assert screened.texts == [c.text for c in one.completions]
        made = finish(screened, GRADED, me)
        assert isinstance(made, Group)
        assert made.id == screened.mark.id
        assert made.task == world.regenerate(one.task)
        assert [r.completion for r in made.rollouts] == list(one.completions)
        assert made.rewards == tuple(v.reward for v in GRADED)


def test_text_alone_is_enough() -> None:
    texts = tuple(replace(c, tokens=None) for c in body().completions)
    (data,) = sent(body(completions=texts))
    assert isinstance(finish(passed(data, view()), GRADED, view()), Group)
    assert isinstance(passed(data, view(tokenizer=b"")), Screened)


def test_tokens_of_another_tokenizer_are_put_aside() -> None:
    other = tuple(world.completion(f"wholly different {n}", n, tokenizer=b"o" * 32) for n in range(8))
    me = view(spells=lambda completion: False)
    made = finish(passed(sent(body(completions=other))[0], me), GRADED, me)
    assert isinstance(made, Group)
    assert all(r.completion.tokens is None for r in made.rollouts)
    assert [r.completion.text for r in made.rollouts] == [c.text for c in other]


def test_what_cannot_be_graded_is_refused_but_a_part_may_be() -> None:
    me = view()
    first, second = sent(body(number=0), body(number=1))
    refusal = finish(passed(first, me), [Verdict(None, error="timed out")] * 8, me)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.author) == (Reason.UNGRADED, ALICE.id)
    assert "timed out" in refusal.detail
    made = finish(passed(second, me), [Verdict(None)] * 6 + [Verdict(0.0), Verdict(1.0)], me)
    assert isinstance(made, Group)
    assert made.rewards == (0.0, 1.0)


def _one(text: str = "7", **changes: object) -> Completion:
    return replace(world.completion(text), **changes)


def _tokens(*ids: int, logprobs: bytes = b"") -> Tokens:
    return Tokens(world.TOKENIZER, ids, logprobs)


def _low() -> Completion:
    made = world.completion("a")
    assert made.tokens is not None
    logprobs_T = made.tokens.logprobs_T.copy()
    logprobs_T[0] = -31.0
    return replace(made, tokens=replace(made.tokens, logprobs=logprobs_T.tobytes()))


def _heldout() -> Body:
    index = next(i for i in range(96) if not world.is_train(world.regenerate(replace(body().task, index=i)).question))
    return body(task=replace(body().task, index=index))


def pair(*first: Completion) -> tuple[Completion, ...]:
    return (*first, world.completion("the other answer"))


BROKEN: dict[str, tuple[Body, Reason]] = {
    "another env": (body(task=replace(body().task, env="products")), Reason.FAMILY),
    "another configuration": (body(task=replace(body().task, config=b"x" * 32)), Reason.FAMILY),
    "another's question": (body(task=replace(body().task, seed=5)), Reason.NOT_DRAWN),
    "beyond the epoch": (body(task=replace(body().task, index=4096)), Reason.NOT_DRAWN),
    "no such question": (body(task=replace(body().task, index=96)), Reason.TASK),
    "held out": (_heldout(), Reason.HELD_OUT),
    "one answer": (body(completions=(_one(),)), Reason.GROUP_SIZE),
    "too many answers": (body(completions=(_one(),) * 65), Reason.GROUP_SIZE),
    "a picture": (body(completions=pair(_one(parts=(Blob(b"d" * 32, "image/png", 9),)))), Reason.BLOB),
    "too long": (body(completions=pair(_one("x" * 4001, tokens=None))), Reason.TOO_LONG),
    "too long in parts": (body(completions=pair(_one(parts=(Text("x" * 2001),) * 2, tokens=None))), Reason.TOO_LONG),
    "hot": (body(sampling=Sampling(4.1)), Reason.SAMPLING),
    "cold": (body(sampling=Sampling(1e-300)), Reason.SAMPLING),
    "greedy": (body(sampling=Sampling(0.0)), Reason.SAMPLING),
    "no tokens": (body(completions=pair(_one("", tokens=_tokens()))), Reason.TOKENS),
    "more than sampled": (body(completions=pair(_one("x" * 65))), Reason.TOKENS),
    "more than the family": (body(completions=pair(_one("x" * 64)), sampling=Sampling(max_tokens=99)), Reason.TOKENS),
    "other spelling": (body(completions=pair(_one("7", tokens=_tokens(56, EOS)))), Reason.TOKENS),
    "no end": (body(completions=pair(_one("7", tokens=_tokens(55)))), Reason.TOKENS),
    "an end that was not": (body(completions=pair(_one("7", finish="length"))), Reason.TOKENS),
    "a miracle": (body(completions=pair(_low())), Reason.LOGPROBS),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_rule_refuses_what_breaks_it(what: str) -> None:
    made, reason = BROKEN[what]
    me = view()
    refusal = refused(sent(made)[0], me)
    assert (refusal.reason, refusal.author) == (reason, ALICE.id)
    assert len(me.seen) == 0


def _at_the_limit() -> Completion:
    made = world.completion("x" * 63)
    assert made.tokens is not None
    logprobs_T = made.tokens.logprobs_T.copy()
    logprobs_T[0] = MIN_LOGPROB
    return replace(made, tokens=replace(made.tokens, logprobs=logprobs_T.tobytes()))


ALLOWED = {
    "cool": body(sampling=Sampling(0.05, max_tokens=64)),
    "warm": body(sampling=Sampling(4.0, max_tokens=64)),
    "long": body(completions=pair(_one("x" * 4000, tokens=None))),
    "as many tokens as allowed, one as unlikely": body(completions=pair(_at_the_limit())),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_limits_themselves_are_allowed(what: str) -> None:
    passed(sent(ALLOWED[what])[0], view())


@pytest.mark.parametrize("size", [2, 64])
def test_groups_of_every_allowed_size_pass(size: int) -> None:
    passed(sent(body(completions=world.answers(1, size)))[0], view())


def test_an_author_can_tell_what_all_would_refuse() -> None:
    assert oversized(body(), CHARTER.admission) is None
    refusal = oversized(BROKEN["too many answers"][0], CHARTER.admission)
    assert refusal is not None
    assert refusal.reason is Reason.GROUP_SIZE


def test_size_and_form_come_first() -> None:
    data = sent(body())[0]
    small = view(world.with_rules(max_body_bytes=256))
    assert refused(data, small).reason is Reason.TOO_LARGE
    assert refused(b"", view()).reason is Reason.VERSION
    assert refused(data[:-1], view()).reason is Reason.SCHEMA
    assert refused(b"\x07" + data[1:], view()).reason is Reason.VERSION
    assert refused(encode(body()), view()).reason is Reason.SCHEMA
    assert all(refused(bad, view()).author is None for bad in (b"", data[:-1]))


def test_only_members_and_not_myself() -> None:
    closed = new_charter(ALICE, "bees", CHARTER.families, created_ms=5, members=[BOB.id])
    me = view(closed)
    assert isinstance(passed(sent(body(BOB), author=BOB, charter=me.charter_id)[0], me), Screened)
    refusal = refused(sent(body(EVE), author=EVE, charter=me.charter_id)[0], me)
    assert (refusal.reason, refusal.author) == (Reason.NOT_MEMBER, None)
    assert refused(sent(body(ME), author=ME)[0], view()).reason is Reason.OWN


def test_who_did_not_sign_is_not_blamed() -> None:
    forged = sealed(body(BOB), author=EVE)[0]
    refusal = refused(encode(forged), view())
    assert (refusal.reason, refusal.author) == (Reason.SIGNATURE, None)
    honest = sealed(body(), body(number=1))[0]
    for bad in (
        replace(honest, body=replace(honest.body, round=4)),
        replace(honest, seal=replace(honest.seal, path=())),
        replace(honest, seal=replace(honest.seal, index=1)),
        replace(honest, seal=replace(honest.seal, signature=b"")),
    ):
        assert refused(encode(bad), view()).reason is Reason.SIGNATURE
    assert refused(sent(body(), charter=b"d" * 32)[0], view()).reason is Reason.SIGNATURE


def test_a_forgery_does_not_keep_the_honest_one_out() -> None:
    me = view()
    honest = sealed(body())[0]
    refused(encode(replace(honest, seal=replace(honest.seal, signature=bytes(64)))), me)
    assert isinstance(passed(encode(honest), me), Screened)


@pytest.mark.parametrize(
    ("late_s", "reason"),
    [(3600, None), (3601, Reason.STALE), (-600, None), (-601, Reason.FUTURE)],
)
def test_freshness_has_two_sides(late_s: int, reason: Reason | None) -> None:
    result = screen(sent(body())[0], view(), NOW_MS + late_s * 1000)
    assert (result.reason if isinstance(result, Refusal) else None) is reason


def test_the_same_group_counts_once() -> None:
    me = view()
    first, again = sealed(body())[0], sealed(body(), created_ms=NOW_MS + 1)[0]
    passed(encode(first), me)
    assert refused(encode(first), me).reason is Reason.DUPLICATE
    assert refused(encode(again), me).reason is Reason.DUPLICATE


def test_one_question_is_answered_once_by_an_author() -> None:
    me = view()
    passed(sent(body())[0], me)
    assert refused(sent(body(round=4, completions=world.answers(77)))[0], me).reason is Reason.REPEAT


def _common(number: int, author: Key, answers: tuple[Completion, ...]) -> bytes:
    ref = replace(body().task, index=world.train_index(ALICE, number))
    return sent(body(author, completions=answers, task=ref), author=author)[0]


def _common_view(**changes: object) -> admission.View:
    return view(is_drawn=lambda ref, author: True, **changes)


def test_another_authors_answers_are_a_copy_in_whatever_order() -> None:
    me = _common_view()
    passed(_common(0, ALICE, world.answers(1)), me)
    refusal = refused(_common(0, BOB, world.answers(1)[::-1]), me)
    assert (refusal.reason, refusal.author) == (Reason.COPY, BOB.id)
    stripped = tuple(replace(c, tokens=None) for c in world.answers(1))
    assert refused(_common(0, BOB, stripped), me).reason is Reason.COPY
    assert isinstance(passed(_common(0, BOB, world.answers(2)), me), Screened)


def test_my_own_answers_coming_back_are_a_copy() -> None:
    me = _common_view()
    mine = sealed(body(ME), author=ME)[0]
    me.seen.add(mark(mine, bytes(32), world.regenerate(body().task).question))
    assert refused(_common(0, BOB, body(ME).completions), me).reason is Reason.COPY


def test_short_answers_coincide_and_are_no_copy() -> None:
    me = _common_view()
    short = tuple(world.completion(text) for text in ("7", "7", "8", "9"))
    long = tuple(world.completion("the same long sentence, twice over, and so on") for _ in range(8))
    for number, same in enumerate((short, long)):
        for author in (ALICE, BOB):
            passed(_common(number, author, same), me)


def test_a_round_has_a_quota() -> None:
    me = view(max_groups_per_round=3)
    four = sent(*(body(number=number) for number in range(4)))
    assert refused(four[0], me).reason is Reason.QUOTA
    for number in range(3):
        passed(sent(body(number=number))[0], me)
    assert refused(sent(body(number=3))[0], me).reason is Reason.QUOTA
    assert isinstance(passed(sent(body(number=3, round=4))[0], me), Screened)
    assert isinstance(passed(sent(body(BOB), author=BOB)[0], me), Screened)


def test_nobody_leafs_through_epochs() -> None:
    me = view()

    def at(epoch: int, late_s: int) -> bytes:
        ref = replace(
            body().task, seed=world.stream_seed(ALICE.id, epoch), epoch=epoch, index=world.train_index(ALICE, 0, epoch)
        )
        made = body(task=ref, round=99 + epoch + late_s)
        return sent(made, created_ms=NOW_MS + late_s * 1000)[0]

    passed(at(5, 0), me)
    assert refused(at(7, 1), me).reason is Reason.EPOCH
    passed(at(6, 1), me)
    assert refused(at(3, 1), me).reason is Reason.EPOCH
    passed(at(8, 1 + MIN_EPOCH_S), me)
    passed(at(4, -30), me)  # made before, came late


def test_a_bug_of_ours_is_not_swallowed() -> None:
    def broken(ref: object) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        screen(sent(body())[0], view(regenerate=broken), NOW_MS)


def test_each_head_is_verified_once() -> None:
    calls = []
    me = view(verify=lambda *args: calls.append(args) or verify(*args))
    for data in sent(*(body(number=number) for number in range(6))):
        passed(data, me)
    assert len(calls) == 1
    forged = replace(sealed(body(number=9))[0].seal, signature=bytes(64))
    for _ in range(3):
        refused(encode(msgspec.structs.replace(sealed(body(number=9))[0], seal=forged)), me)
    assert len(calls) == 2


def announced(**changes: object) -> bytes:
    news = announce(CHARTER_ID, sealed(*(body(number=number) for number in range(3))))
    return encode(replace(news, **changes))


def test_an_honest_announcement_passes() -> None:
    news = screen_announcement(announced(), ALICE.id, view(max_groups_per_round=3), NOW_MS)
    assert isinstance(news, Announcement)
    assert len(news.entries) == 3
    assert check_signature(news, view()) is None


def test_announcements_that_are_refused() -> None:
    entries = announce(CHARTER_ID, sealed(body())).entries
    mine = encode(announce(CHARTER_ID, sealed(body(ME), author=ME)))
    cases: list[tuple[bytes, admission.View, int, Reason, bytes | None]] = [
        (b"", view(), NOW_MS, Reason.VERSION, None),
        (announced()[:-1], view(), NOW_MS, Reason.SCHEMA, None),
        (bytes(admission.ANNOUNCEMENT_MAX_BYTES + 1), view(), NOW_MS, Reason.TOO_LARGE, None),
        (announced(charter=b"d" * 32), view(), NOW_MS, Reason.OTHER_CHARTER, None),
        (mine, view(), NOW_MS, Reason.OWN, None),
        (announced(author=BOB.id), view(), NOW_MS, Reason.SIGNATURE, None),
        (announced(entries=entries + entries), view(), NOW_MS, Reason.DUPLICATE, None),
        (announced(), view(max_groups_per_round=2), NOW_MS, Reason.QUOTA, None),
        (announced(), view(), NOW_MS + 3601_000, Reason.STALE, None),
        (announced(), view(), NOW_MS - 601_000, Reason.FUTURE, None),
    ]
    for data, me, now_ms, reason, author in cases:
        sender = ME.id if data == mine else ALICE.id
        refusal = screen_announcement(data, sender, me, now_ms)
        assert isinstance(refusal, Refusal), reason
        assert (refusal.reason, refusal.author) == (reason, author)


def test_of_an_announcement_that_its_author_did_not_sign_nothing_is_pulled() -> None:
    honest = announce(CHARTER_ID, sealed(*(body(number=number) for number in range(3))))
    for change in (
        {"entries": announce(CHARTER_ID, sealed(body(), body(number=1))).entries},
        {"created_ms": NOW_MS - 1},
        {"round": honest.round + 1},
        {"signature": bytes(64)},
    ):
        news = screen_announcement(encode(replace(honest, **change)), ALICE.id, view(), NOW_MS)
        assert isinstance(news, Announcement)
        refusal = check_signature(news, view())
        assert refusal is not None
        assert (refusal.reason, refusal.author) == (Reason.SIGNATURE, None)


def test_every_decode_error_has_a_reason_here() -> None:
    assert [reason.value for reason in Reason][:7] == [
        "too-large",
        "version",
        "schema",
        "not-canonical",
        "compression",
        "framing",
        "too-many",
    ]
