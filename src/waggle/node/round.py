"""One round, left to right; each arrow is one function and names the module that does the work.

draw -> answer -> grade -> seal and offer -> hear, pull, admit -> mix -> pack -> step -> record

`play` is the only loop body there is: a laptop node, a simulated swarm and a test with a scripted model run it.
What can go wrong on the way is data: a question without a verdict is not trained on, a peer that fails or lies
is counted, an empty pool means training on one's own. Only our own bugs and a disk that refuses end it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waggle.core.codec import digest
from waggle.core.events import json_line
from waggle.core.keys import peer_name
from waggle.core.rng import rng_for, seed_for
from waggle.core.sealing import seal
from waggle.core.types import Body, Completion, Experience, Group, Rollout, Sampling, Task
from waggle.node import best
from waggle.node.arrival import Arrived, gather
from waggle.node.evaluate import Score
from waggle.node.explaining import tell
from waggle.node.learner import Step, policy_ref
from waggle.node.node import Node
from waggle.node.state import Record, State
from waggle.policy.machine import resident_bytes
from waggle.swarm.dose import next_dose
from waggle.swarm.keep import KEEPS
from waggle.swarm.sampling import Mixed, mix
from waggle.swarm.seen import Mark, mark
from waggle.tasks.stream import Cursor

Gather: TypeAlias = Callable[[Node, int, list[Mark]], Awaitable[Arrived]]
"""(node, number of the round, marks of its own experience) -> what came in."""


@dataclass(frozen=True)
class Report:
    """A finished round, as views show it."""

    number: int
    own: list[Group]
    arrived: Arrived
    mixed: Mixed
    step: Step
    score: Score | None
    seconds: float


async def play(node: Node, gather: Gather = gather) -> Report:
    """Play one round and commit it. Raises only RunError: the disk, or three steps that are not numbers."""
    started_s = node.clock.passed_s()
    number, went_back = node.state.round + 1, best.begin_round(node)
    own, cursor = answer(node, number)
    sealed, created_ms = seal_round(node, number, own)
    await node.exchange.offer(number, sealed)
    arrived = await gather(node, number, own_marks(node, sealed, own))
    mixed = draw_batch(node, number, own, arrived)
    groups = [*mixed.local, *mixed.foreign]
    batch = node.learner.pack(groups, node.key.id, node.rates(mixed.foreign))
    step = node.learner.step(batch)
    note_likeness(node, groups, step)
    score = node.steer(number)
    settle(node, number, arrived, score)
    seconds = node.clock.passed_s() - started_s
    state = next_state(node, number, cursor, created_ms, batch, groups, step, score, seconds)
    report = Report(number, own, arrived, mixed, step, score, seconds)
    record(node, state, report, batch, sealed, went_back)
    return report


def answer(node: Node, number: int) -> tuple[list[Group], Cursor]:
    """Draw questions, answer each several times, grade; draw again for groups without a signal, within bounds."""
    config, cursor, groups = node.config.round, node.state.cursor, []
    missing = config.local
    for _ in range(1 + config.refills):
        tasks, cursor = node.taskset.draw(node.key.id, cursor, missing, node.config.tasks.families)
        groups += grade(node, number, tasks)
        missing = config.local - sum(group.has_signal for group in groups)
        if missing <= 0:
            break
    return groups, cursor


def grade(node: Node, number: int, tasks: Sequence[Task]) -> list[Group]:
    """Groups of own answers with verdicts."""
    config = node.config.round
    longest = max(task.max_tokens for task in tasks)
    sampling = Sampling(
        temperature=config.temperature,
        max_tokens=min(longest, config.max_tokens) if config.max_tokens else longest,
        seed=seed_for(node.config.run.seed, "answer", node.key.id, number),
    )
    answers = node.learner.generate(tasks, config.group_size, sampling)
    verdicts = iter(node.grader.grade([(t, c.text) for t, row in zip(tasks, answers, strict=True) for c in row]))
    node.totals["generated_tokens"] += sum(len(c.tokens.ids) if c.tokens else 0 for row in answers for c in row)
    policy = policy_ref(node.learner, node.state.lineage, node.state.step)
    groups = []
    for task, row in zip(tasks, answers, strict=True):
        body = Body(task.ref, policy, sampling, tuple(row), node.key.id, number)
        rollouts = tuple(Rollout(completion, next(verdicts)) for completion in row)
        groups.append(Group(task, policy, sampling, rollouts, node.key.id, number, digest(body)))
    return groups


def seal_round(node: Node, number: int, own: Sequence[Group]) -> tuple[list[Experience], int]:
    """The groups that are shared, under one signature, and the time it was given."""
    keep = KEEPS[node.config.share.publish]
    shared = [group for group in own if keep(group) is None and _may_leave(node, group)]
    now_ms, after_ms = int(node.clock.now_s() * 1000), node.state.created_ms + 1
    ahead_ms = 1000 * node.taskset.charter.admission.max_skew_s
    created_ms = now_ms if after_ms > now_ms + ahead_ms else max(now_ms, after_ms)  # the clock was wrong once
    bodies = [_body(node, group) for group in shared]
    return (seal(node.key, node.taskset.digest, number, created_ms, bodies) if bodies else []), created_ms


def _may_leave(node: Node, group: Group) -> bool:
    return node.config.tasks.share_file or not group.task.weak


def _body(node: Node, group: Group) -> Body:
    completions = tuple(_as_sent(node, rollout.completion) for rollout in group.rollouts)
    return Body(group.task.ref, group.policy, group.sampling, completions, group.author, group.round)


def _as_sent(node: Node, completion: Completion) -> Completion:
    """Tokens that peers would refuse, since a special one hides among them, stay here; the text is good."""
    whole = node.config.share.logprobs and node.learner.spells(completion)
    return completion if whole else Completion(completion.parts, completion.finish)


def own_marks(node: Node, sealed: Sequence[Experience], own: Sequence[Group]) -> list[Mark]:
    """Remember what I shared, so that a peer who hands my answers back as his is told as a copy."""
    questions = {group.task.ref: group.task.question for group in own}
    marks = [mark(e, digest(e.body), questions[e.body.task]) for e in sealed]
    for one in marks:
        node.view.seen.add(one)
    return marks


def draw_batch(node: Node, number: int, own: Sequence[Group], arrived: Arrived) -> Mixed:
    """Put what arrived into the pool and draw this step's groups: I own, J foreign."""
    node.estimates.learn(own)
    for one in arrived.admitted:
        node.pool.insert(one.group, one.size_bytes, number)
    node.pool.expire(number)
    config = node.config.round
    rng = rng_for(node.config.run.seed, "mix", node.key.id, number)
    taken = node.state.dose.of(config.foreign)
    mixed = mix(own, node.candidates(number), config.local, taken, node.sampler, rng)
    node.use(group.id for group in mixed.foreign)
    node.trust.use(group.author for group in mixed.foreign)
    return mixed


def note_likeness(node: Node, groups: Sequence[Group], step: Step) -> None:
    """Note how like mine the answers of peers were, where every group that has a signal was trained on."""
    trained = [group for group in groups if group.has_signal]
    for group, inside in zip(trained, step.inside, strict=True) if len(trained) == len(step.inside) else ():
        if group.author != node.key.id:
            node.likeness.learn(group.author, group.task.ref.config, inside)


def settle(node: Node, number: int, arrived: Arrived, score: Score | None) -> None:
    """Draw from the round what it says of peers: whose experience helped, who takes and gives, who is left out."""
    for peer in arrived.took:
        node.trust.take(peer)
    if score:
        known = node.state.last_rate >= 0
        node.trust.credit(score.over().rate - node.state.last_rate if known else None)
    for change in node.trust.next_round(number):
        name = peer_name(change.author)
        node.events.emit(change.event, peer=name, reason=change.reason, until_round=change.until_round)
    node.serve_by_standing()


def next_state(
    node: Node,
    number: int,
    cursor: Cursor,
    created_ms: int,
    batch: bytes,
    groups: Sequence[Group],
    step: Step,
    score: Score | None,
    seconds: float,
) -> State:
    """The state after the round."""
    old = node.state
    rate = score.over().rate if score else -1.0
    better = best.is_best(node, number, rate)
    reached = node.next_lineage(batch, step.moved)
    totals, share = node.totals, node.config.share
    trained = {group.task.question for group in groups}
    totals["overlap"] += len(trained & node.heldout_questions)
    totals["trained_tokens"] += int(step.numbers.get("num_tokens", 0))
    totals["computed_tokens"] += int(step.numbers.get("num_computed", 0))
    return State(
        lineage=reached,
        round=number,
        step=old.step + step.moved,
        cursor=cursor,
        heard=node.heard_state(),
        created_ms=created_ms,
        best_round=number if better else old.best_round,
        best_rate=rate if better else old.best_rate,
        best_lineage=reached if better else old.best_lineage,
        start_bits=old.start_bits,
        trained_s=old.trained_s + seconds,
        totals={name: float(value) for name, value in totals.items()},
        estimates=node.estimates.state(),
        last_rate=rate if score else old.last_rate,
        standings=node.trust.state(),
        likes=node.likeness.state(),
        dose=next_dose(old.dose, rate, old.best_rate, node.config.eval.steer) if share.adaptive and score else old.dose,
    )


def record(
    node: Node, state: State, report: Report, batch: bytes, sealed: Sequence[Experience], went_back: bool
) -> None:
    """Commit the round, then tell of it. A disk that is full keeps nobody from training on."""
    arrived, mixed = report.arrived, report.mixed
    used = tuple(group.id for group in mixed.foreign)
    metrics = json_line(_metrics(node, state, report))
    record = Record(
        state,
        batch,
        tuple(sealed),
        tuple(arrived.admitted),
        tuple(arrived.marks),
        used,
        metrics,
        tuple(arrived.deeds),
        tuple(arrived.took),
        went_back,
    )
    unsaved = node.archive.commit(record)
    node.state = state
    node.events.emit(
        "round",
        round=state.round,
        seconds=round(report.seconds, 3),
        trained_s=round(state.trained_s, 3),
        memory_mb=round(resident_bytes() / 1e6, 1),
        **_traffic(node),
    )
    tell(node, state.round, mixed)
    node.note_unsaved(unsaved)
    fates = {decision.id: decision.reason for decision in mixed.decisions}
    groups = {g.id: g for g in (*report.own, *mixed.foreign)}
    node.where_it_can(lambda: node.archive.show([(group, fates.get(i, "")) for i, group in groups.items()]))
    if report.score and state.best_round == state.round:
        node.where_it_can(lambda: best.keep(node))
    node.where_it_can(node.checkpoint_if_due)
    node.on_change()


def _metrics(node: Node, state: State, report: Report) -> dict[str, object]:
    rewards = [reward for group in report.own for reward in group.rewards]
    answers = [rollout for group in report.own for rollout in group.rollouts]
    arrived, mixed = report.arrived, report.mixed
    line: dict[str, object] = {
        "round": state.round,
        "step": state.step,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "ungraded": len(answers) - len(rewards),
        "cut_off": sum(a.completion.finish == "length" for a in answers),
        "own_groups": len(mixed.local),
        "own_without_signal": sum(not group.has_signal for group in report.own),
        "foreign_groups": len(mixed.foreign),
        "admitted": len(arrived.admitted),
        "refused": dict(sorted(arrived.refused.items())),
        "pool": len(node.pool),
        "peers": len(node.exchange.transport.peers()),
        "families": _by_family(node, report.own),
        "generated_tokens": state.totals.get("generated_tokens", 0),
        "trained_tokens": state.totals.get("trained_tokens", 0),
        "learning": report.step.numbers,
        "lineage": state.lineage,
    }
    if report.score:
        line["heldout"] = {f.family: [f.correct, f.asked - f.ungraded] for f in report.score.families}
    return line


def _by_family(node: Node, groups: Sequence[Group]) -> dict[str, list[float]]:
    """Sum and number of rewards by family."""
    sums: dict[str, list[float]] = {}
    for group in groups:
        cell = sums.setdefault(node.taskset.family(group.task.ref).label, [0.0, 0])
        cell[0] += sum(group.rewards)
        cell[1] += len(group.rewards)
    return sums


def _traffic(node: Node) -> dict[str, int]:
    counts = node.exchange.transport.counts
    return {"sent_bytes": counts["sent_bytes"], "received_bytes": counts["received_bytes"]}
