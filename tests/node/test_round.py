"""Whole rounds with scripted models: what is trained on, what is shared, what is refused and how it is counted."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.node.crafted import EVE, SUMS, Grading, Recording, Swarm, Wordy, body, drawn, hears, is_train, met, sealed
from tests.node.parts import config, easy_family, scripted_swarm
from waggle.core.clock import FakeClock
from waggle.core.codec import encode
from waggle.core.errors import ConfigError
from waggle.core.sealing import announce, announcement_head
from waggle.core.types import (
    Body,
    Completion,
    Sampling,
    Task,
    Text,
    Tokens,
    Verdict,
)
from waggle.node import build
from waggle.node.round import Report, play, seal_round
from waggle.node.swarm import connect
from waggle.swarm.seen import MIN_DISTINCT
from waggle.tasks.stream import is_common


def test_nothing_held_out_is_trained_on_shared_or_admitted() -> None:
    swarm = Swarm(3, "share.publish=all")
    reports = met(swarm, 12)
    for node, archive, told in zip(swarm.nodes, swarm.archives, reports, strict=True):
        seen = [group.task for report in told for group in (*report.own, *report.mixed.foreign)]
        seen += [admitted.group.task for record in archive.records for admitted in record.admitted]
        assert len(seen) > 80
        assert {node.taskset.bucket(task) for task in seen} == {"train"}
        assert not {task.question for task in seen} & node.heldout_questions
        assert node.state.totals["overlap"] == 0


@pytest.mark.parametrize("kind", ["steer", "report", "shots"])
def test_a_held_out_question_from_a_peer_is_refused(kind: str) -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    bad = drawn(node, EVE, lambda task: node.taskset.bucket(task) == kind)
    good = drawn(node, EVE, is_train(node))
    report, line = hears(node, swarm, sealed(node, [body(bad, (bad.truth, "x")), body(good, (good.truth, "x"))]))
    assert line["refused"] == {"held-out": 1}
    assert [group.task.ref for group in report.mixed.foreign] == [good.ref]


def test_an_overlap_would_be_counted() -> None:
    """The figure that must be zero is measured: a held-out question that gets past admission shows."""
    swarm = Swarm(1)
    (node,) = swarm.nodes
    (held,) = node.taskset.heldout("report", 6)[:1]
    assert held.question in node.heldout_questions
    (own,) = met(swarm, 1)[0][0].own[:1]
    signal = tuple(replace(r, verdict=Verdict(float(i % 2))) for i, r in enumerate(own.rollouts))
    node.pool.insert(replace(own, task=held, rollouts=signal, author=EVE.id, id=b"x" * 32), 100, 1)
    asyncio.run(swarm.rounds(1))
    assert node.state.totals["overlap"] == 1
    asyncio.run(swarm.rounds(1))
    assert node.state.totals["overlap"] == 1


def test_what_cannot_be_graded_is_not_trained_on_and_not_zero() -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    sets = (Verdict(None, error="hung"), Verdict(1.0), Verdict(None, error="hung"), Verdict(0.0))
    node.grader = Grading(node.grader, lambda number, verdict: sets[number % 4] if number < 4 else Verdict(None))
    (report,) = met(swarm, 1)[0]
    line = swarm.archives[0].last_line
    assert (line["ungraded"], line["reward"]) == (10, 0.5)
    assert [group.rewards for group in report.own] == [(1.0, 0.0), (), ()]
    trained = node.learner.packed  # type: ignore[attr-defined]
    assert [group.id for group in trained] == [report.own[0].id]
    assert line["own_without_signal"] == 2


def test_without_any_verdict_the_weights_stay_and_the_run_goes_on() -> None:
    swarm = Swarm(2, "share.publish=all")
    for node in swarm.nodes:
        node.grader = Grading(node.grader, lambda number, verdict: Verdict(None, error="hung"))
    reports = met(swarm, 3)
    for node, told, archive in zip(swarm.nodes, reports, swarm.archives, strict=True):
        assert [report.step.moved for report in told] == [False] * 3
        assert (node.state.round, node.state.step) == (3, 0)
        assert node.state.lineage == node.learner.base_digest()
        assert archive.last_line["reward"] is None
        assert archive.last_line["refused"].keys() == {"ungraded"}
        assert len(node.pool) == 0


@pytest.mark.parametrize(("refills", "skill"), [(0, 0.0), (0, 0.4), (1, 0.0), (3, 0.0), (3, 1.0), (3, 0.2)])
def test_new_questions_are_drawn_within_bounds(refills: int, skill: float) -> None:
    swarm = Swarm(1, f"round.refills={refills}", learners=[Recording(skill)])
    for report in met(swarm, 4)[0]:
        signal = sum(group.has_signal for group in report.own)
        assert 3 <= len(report.own) <= 3 * (1 + refills)
        assert len(report.mixed.local) == min(3, signal)
        if skill in (0.0, 1.0):
            assert (len(report.own), signal) == (3 * (1 + refills), 0)
        elif signal < 3:
            assert len(report.own) > 3 or not refills
        refs = [group.task.ref for group in report.own]
        assert len(set(refs)) == len(refs)


@pytest.mark.parametrize("publish", ["signal", "all", "none"])
def test_what_is_published_follows_the_setting(publish: str) -> None:
    swarm = Swarm(2, f"share.publish={publish}", learners=[Recording(0.15, 0), Recording(0.15, 1)])
    reports = met(swarm, 6)
    for archive, told in zip(swarm.archives, reports, strict=True):
        own = [group for report in told for group in report.own]
        assert 0 < sum(group.has_signal for group in own) < len(own)
        shared = {encode(e.body.task) for record in archive.records for e in record.sealed}
        want = {"all": own, "signal": [g for g in own if g.has_signal], "none": []}[publish]
        assert shared == {encode(group.task.ref) for group in want}


def test_groups_that_teach_nothing_are_not_drawn_from_the_pool() -> None:
    swarm = Swarm(2, "share.publish=all", learners=[Recording(0.15, 0), Recording(0.15, 1)])
    reports = met(swarm, 6)
    assert any(not a.group.has_signal for archive in swarm.archives for r in archive.records for a in r.admitted)
    assert all(group.has_signal for told in reports for report in told for group in report.mixed.foreign)


def test_text_alone_travels_where_logprobs_are_kept_back_and_is_used() -> None:
    swarm = Swarm(2, "share.logprobs=false")
    reports = met(swarm, 4)
    for archive, told in zip(swarm.archives, reports, strict=True):
        sent = [c for record in archive.records for e in record.sealed for c in e.body.completions]
        assert sent
        assert all(completion.tokens is None for completion in sent)
        assert all(r.completion.tokens for report in told for group in report.own for r in group.rollouts)
        used = [group for report in told for group in report.mixed.foreign]
        assert len(used) >= 8
        assert all(r.completion.tokens is None for group in used for r in group.rollouts)


class Slipping(Recording):
    """Every other answer of it hides a token that spells nothing."""

    def generate(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        rows = super().generate(tasks, num, sampling)
        return [[self._slipped(c) if g % 2 else c for g, c in enumerate(row)] for row in rows]

    def _slipped(self, completion: Completion) -> Completion:
        tokens = completion.tokens
        assert tokens is not None
        return replace(completion, tokens=Tokens(tokens.tokenizer, (300, *tokens.ids)))


def test_an_answer_with_a_hidden_token_is_sent_as_text() -> None:
    swarm = Swarm(2, "share.publish=all", learners=[Slipping(seed=0), Slipping(seed=1)])
    reports = met(swarm, 3)
    for archive, told in zip(swarm.archives, reports, strict=True):
        bodies = [e.body for record in archive.records for e in record.sealed]
        assert {tuple(c.tokens is not None for c in body.completions) for body in bodies} == {(True, False) * 2}
        assert not any(report.arrived.refused for report in told)
        assert any(report.mixed.foreign for report in told)


def test_tokens_of_another_tokenizer_are_put_aside() -> None:
    swarm = Swarm(2, learners=[Recording(seed=0, tokenizer=b"a" * 32), Recording(seed=1, tokenizer=b"b" * 32)])
    reports = met(swarm, 4)
    for archive, told in zip(swarm.archives, reports, strict=True):
        assert all(c.tokens for record in archive.records for e in record.sealed for c in e.body.completions)
        used = [group for report in told for group in report.mixed.foreign]
        assert len(used) >= 8
        assert all(r.completion.tokens is None for group in used for r in group.rollouts)


@pytest.mark.parametrize("shared", [False, True])
def test_questions_of_a_file_leave_only_where_that_is_wanted(tmp_path: Path, shared: bool) -> None:
    sets = ("share.publish=all", "tasks.file=x", f"tasks.share_file={str(shared).lower()}")
    learners = [Recording(seed=number, tokenizer=b"") for number in range(2)]
    swarm = Swarm(2, *sets, families=(easy_family(tmp_path),), files=tmp_path / build.FILES, learners=learners)
    met(swarm, 2)
    for node, archive in zip(swarm.nodes, swarm.archives, strict=True):
        assert bool(node.exchange.window) is shared
        assert any(record.sealed for record in archive.records) is shared
        assert any(record.admitted for record in archive.records) is shared
        assert all(not json.loads(record.metrics)["refused"] for record in archive.records)
    assert all(node.state.step for node in swarm.nodes)


def test_my_own_answers_do_not_come_back_under_another_name() -> None:
    swarm = Swarm(1, "share.publish=all", learners=[Wordy()])
    (node,) = swarm.nodes
    digest = node.taskset.digest

    async def story() -> tuple[Report, list[Body]]:
        await node.start()
        eve = await swarm.eve()
        await swarm.rounds(6)
        mine = [e.body for sealed_round in node.exchange.window.values() for e in sealed_round]
        both = [b for b in mine if is_common(digest, b.task.epoch, b.task.index, node.taskset.charter.common_share)]
        told = [b for b in both if len({c.text for c in b.completions}) >= MIN_DISTINCT]
        stolen = [replace(b, author=EVE.id, round=1) for b in told][:3]
        await eve.offer(1, sealed(node, stolen))
        return await play(node), stolen

    report, stolen = asyncio.run(story())
    assert len(stolen) >= 2
    assert swarm.archives[0].last_line["refused"] == {"copy": len(stolen)}
    assert report.mixed.foreign == []


def test_every_refusal_is_counted_by_its_reason() -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    tasks = [drawn(node, EVE, is_train(node), skip) for skip in range(6)]
    foreign_ref = replace(tasks[0].ref, index=4000, seed=1)
    tokens = Tokens(b"t" * 32, (1, 2, 3))
    bodies = [
        body(tasks[0], (tasks[0].truth, "wrong")),
        body(tasks[1], ("alone",)),
        body(tasks[2], ("a", "b"), sampling=Sampling(temperature=9.0, max_tokens=6)),
        body(tasks[3], ("a", "b"), task=foreign_ref),
        body(tasks[4], ("a", "b"), task=replace(tasks[4].ref, config=b"?" * 32)),
        body(tasks[5], ("a",), completions=(Completion((Text("a"),), "stop", tokens),) * 2),
    ]
    report, line = hears(node, swarm, sealed(node, bodies))
    assert line["refused"] == {"family": 1, "group-size": 1, "not-drawn": 1, "sampling": 1, "tokens": 1}
    assert list(line["refused"]) == sorted(line["refused"])
    assert line["admitted"] == len(report.mixed.foreign) == 1
    assert node.events.counts["refused"] == 5  # type: ignore[attr-defined]


def test_no_more_is_pulled_than_twice_what_is_trained_on() -> None:
    swarm = Swarm(1, "round.foreign=1")
    (node,) = swarm.nodes
    tasks = [drawn(node, EVE, is_train(node), skip) for skip in range(8)]
    _, line = hears(node, swarm, sealed(node, [body(task, (task.truth, "no")) for task in tasks]))
    assert (line["admitted"], line["foreign_groups"], line["pool"]) == (2, 1, 1)


def test_nobody_announces_in_the_name_of_another() -> None:
    swarm = Swarm(2)
    me, author = swarm.nodes

    async def story() -> tuple[Report, Report]:
        await connect(swarm.nodes)
        eve = await swarm.eve()
        await play(me)
        swarm.network.split({author.key.id})  # I don't hear the author, Eve has his round
        await play(author)
        (theirs,) = author.exchange.window.values()
        await eve.transport.publish(me.taskset.digest, encode(announce(me.taskset.digest, theirs)))
        first = await play(me)
        swarm.network.heal()
        return first, await play(me)

    first, second = asyncio.run(story())
    assert dict(first.arrived.refused) == {"signature": 1}
    assert {group.author for group in second.mixed.foreign} == {author.key.id}
    assert second.mixed.foreign[0].round == 1


def test_nobody_hides_an_authors_groups_by_listing_them() -> None:
    """Eve lists the author's groups under her own name, unsigned or signed: the author is asked all the same."""
    for signs in (False, True):
        swarm = Swarm(2)
        author = swarm.nodes[1]

        async def story(swarm: Swarm = swarm, signs: bool = signs) -> Report:
            me, author = swarm.nodes
            await connect(swarm.nodes)
            eve = await swarm.eve()
            await play(author)
            (theirs,) = author.exchange.window.values()
            list_ = announce(me.taskset.digest, theirs)
            forged = replace(list_, author=EVE.id, signature=bytes(64))
            if signs:
                forged = replace(forged, signature=EVE.sign(announcement_head(forged)))
            await eve.transport.publish(me.taskset.digest, encode(forged))
            return await play(me)

        report = asyncio.run(story())
        assert {group.author for group in report.mixed.foreign} == {author.key.id}
        assert len(report.arrived.admitted) == len(author.exchange.window[1])
        assert sum(report.arrived.refused.values()) >= 1 - signs


def test_an_old_announcement_is_no_news() -> None:
    swarm = Swarm(2)
    me, author = swarm.nodes

    async def story() -> list[Report]:
        await connect(swarm.nodes)
        reports = []
        for node in (author, me, author, me):
            reports.append(await play(node))
        old = author.exchange.window[1]
        await author.exchange.transport.publish(me.taskset.digest, encode(announce(me.taskset.digest, old)))
        reports.append(await play(me))
        return reports

    last = asyncio.run(story())[-1]
    assert (len(last.arrived.admitted), last.arrived.refused.total()) == (0, 0)


def test_a_bad_batch_is_counted_in_the_round() -> None:
    swarm = Swarm(1)
    (node,) = swarm.nodes
    tasks = [drawn(node, EVE, is_train(node), skip) for skip in range(2)]
    made = sealed(node, [body(task, (task.truth, "no")) for task in tasks])

    async def story() -> Report:
        await node.start()
        eve = await swarm.eve()

        async def garbage(caller: bytes, data: bytes) -> bytes:
            return b"not a frame"

        eve.transport.serve("waggle/pull/1", garbage)
        await eve.offer(1, made)
        return await play(node)

    report = asyncio.run(story())
    assert swarm.archives[0].last_line["refused"] == {"compression": 1}
    assert (len(report.mixed.foreign), node.state.step) == (0, 1)


def test_families_are_counted_by_name() -> None:
    swarm = Swarm(1, learners=[Recording(1.0)])
    met(swarm, 1)
    line = swarm.archives[0].last_line
    assert line["families"] == {SUMS.label: [12.0, 12]}
    assert line["generated_tokens"] == sum(
        len(r.completion.tokens.ids)
        for g in met(Swarm(1, learners=[Recording(1.0)]), 1)[0][0].own
        for r in g.rollouts
        if r.completion.tokens
    )


def test_more_completions_than_the_swarm_accepts_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"round\.group_size = 65; the swarm accepts at most 64"):
        Swarm(1, "round.group_size=65")


def test_the_cursor_moves_on_and_no_question_is_drawn_twice() -> None:
    swarm = Swarm(1)
    refs = [group.task.ref for report in met(swarm, 10)[0] for group in report.own]
    assert len(set(refs)) == len(refs) == 30


def test_a_clock_that_was_ahead_once_silences_nobody_for_long() -> None:
    clock = FakeClock()
    nodes = scripted_swarm((SUMS,), 1, config("model.name=scripted", "share.publish=all"), clock=clock)
    (node,) = nodes
    asyncio.run(node.start())
    now_ms = int(clock.now_s() * 1000)
    for ahead_s, expected_ms in ((60, now_ms + 60_001), (30 * 24 * 3600, now_ms)):
        node.state = replace(node.state, created_ms=now_ms + 1000 * ahead_s)
        assert seal_round(node, 1, [])[1] == expected_ms
