"""Answers: our own decode loop on the transformers module, sharing its tensors with the trainer.

The life of a call: prompts become ids; the few-shot prefix that a family's prompts share is computed once; the
rest of each question once; that is copied to the question's rows; then all rows step together, and rows that ended
leave the batch. Slots end where the prompt ends, so every row writes its next token to the same slot.

Sampling is the inverse distribution function at one uniform number for each (row, position) (`core/rng.py`), so an
answer does not depend on its batch, up to float ties. Log-probabilities are those of the whole distribution at the
sampling temperature, in float32: top-p and top-k restrict what is drawn, not what is recorded, since that is what
the trainer can recompute. Temperature 0 takes the likeliest id and records its log-probability at temperature 1.

Left out: growing the cache (room for the longest answer is reserved, so memory is known beforehand), beams,
continuous batching (a bigger engine fits behind `Generate`).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from waggle.core.errors import ModelError
from waggle.core.rng import seed_for, uniforms
from waggle.core.types import Completion, Sampling, Task, Text, Tokens
from waggle.policy import machine
from waggle.policy.cache import SlotCache
from waggle.policy.memory import kv_token_bytes, row_bytes
from waggle.policy.policy import Policy

_PREFILL_TOKENS = 1024
_COMPACT_AT = 0.75
_LAST_UNIFORM = 1 - 2.0**-22
"""Below 1 by more than float32 rounding, so that a drawn id always has a probability above zero."""


class _Row(NamedTuple):
    """One answer to be made: which task, which of its answers, and the most tokens it may have."""

    task: int
    number: int
    limit: int


@dataclass
class _Batch:
    """Rows that are decoded together, and the state after their prompts."""

    cache: SlotCache
    valid_BS: Tensor
    positions_B: Tensor
    logits_BV: Tensor


Watch = Callable[[int, int, int], bool]
"""(task, number of the answer, id that was drawn) -> whether that answer is to end here."""


def generate(
    policy: Policy,
    tasks: Sequence[Task],
    num: int,
    sampling: Sampling,
    watch: Watch | None = None,
    ids: Sequence[tuple[int, ...]] = (),
) -> list[list[Completion]]:
    """`num` answers to each task, in the order of `tasks`; two tasks with one question get the same answers.

    Args:
        watch: told of every token as it is drawn.
        ids: prompts as they are, one a task; those of the tasks otherwise.

    Raises:
        ModelError: where a prompt leaves no room for an answer, or the model's scores are not finite.
    """
    prompts = list(ids) or [policy.encode_prompt(task.prompt) for task in tasks]
    rows = [_Row(t, i, _limit(policy, task, prompts[t], sampling)) for t, task in enumerate(tasks) for i in range(num)]
    rows.sort(key=lambda row: (-row.limit, tasks[row.task].ref.config, len(prompts[row.task]), row.task, row.number))
    answers: dict[tuple[int, int], Completion] = {}
    with torch.inference_mode(), policy.autocast():
        prefill = _Prefill(policy, tasks, prompts)
        for chunk in _chunks(policy, rows, prompts):
            for row, answer in zip(chunk, _decode(policy, tasks, chunk, prefill, sampling, watch), strict=True):
                answers[row.task, row.number] = answer
    machine.trim()  # the cache is gone
    return [[answers[t, i] for i in range(num)] for t in range(len(tasks))]


def _limit(policy: Policy, task: Task, prompt: tuple[int, ...], sampling: Sampling) -> int:
    room = policy.context - len(prompt)
    if room < 1:
        raise ModelError(
            f"a prompt of {task.ref.env} has {len(prompt)} tokens and {policy.name} reads at most {policy.context} "
            "with the answer; use fewer shots or a model with a longer context"
        )
    return min(task.max_tokens, sampling.max_tokens, room)


def _chunks(policy: Policy, rows: Sequence[_Row], prompts: Sequence[tuple[int, ...]]) -> Iterator[list[_Row]]:
    """Rows in order, as many at a time as the memory for keys, values and scores allows, but at least one.

    Neighbouring chunks that are not kept apart by their lengths are of one size, since a small one costs as much.
    """
    few = list(_bounded(policy, rows, prompts, len(rows)))
    yield from _bounded(policy, rows, prompts, -(-len(rows) // max(1, len(few))))


def _bounded(
    policy: Policy, rows: Sequence[_Row], prompts: Sequence[tuple[int, ...]], most: int
) -> Iterator[list[_Row]]:
    slot_bytes, score_bytes = kv_token_bytes(policy.model.config), row_bytes(policy.vocabulary)
    chunk: list[_Row] = []
    prompt = limit = 0
    for row in rows:
        prompt, limit = max(prompt, len(prompts[row.task])), max(limit, row.limit)
        need_bytes = (len(chunk) + 1) * ((prompt + limit) * slot_bytes + score_bytes)
        if chunk and (len(chunk) == most or need_bytes > policy.kv_bytes):
            yield chunk
            chunk, prompt, limit = [], len(prompts[row.task]), row.limit
        chunk.append(row)
    if chunk:
        yield chunk


class _Prefill:
    """Computes prompts; keeps what the prompts of a family share for the length of one call."""

    def __init__(self, policy: Policy, tasks: Sequence[Task], prompts: Sequence[tuple[int, ...]]) -> None:
        self.policy, self.tasks, self.prompts = policy, tasks, prompts
        self._prefixes: dict[bytes, SlotCache | None] = {}
        self._of_family: dict[bytes, set[tuple[int, ...]]] = {}
        for task, prompt in zip(tasks, prompts, strict=True):
            self._of_family.setdefault(task.ref.config, set()).add(prompt)

    def __call__(self, rows: Sequence[_Row]) -> _Batch:
        """The state of all rows after their prompts, ready to draw the first token."""
        device, width = self.policy.device, max(len(self.prompts[row.task]) for row in rows)
        cache, room = None, width + rows[0].limit
        valid_BS = torch.ones((len(rows), room), dtype=torch.bool, device=device)
        logits, done = [], 0
        for part in self._parts(rows):
            source, valid_GS, logits_GV = self._part(part)
            cache = source.like(len(rows), room) if cache is None else cache
            line = {task: g for g, task in enumerate(dict.fromkeys(row.task for row in part))}
            chosen = torch.tensor([line[row.task] for row in part], device=device)
            here, start = slice(done, done + len(part)), width - source.filled
            cache.receive(source, here, chosen, start)
            valid_BS[here, :start] = False
            valid_BS[here, start:width] = valid_GS[chosen]
            logits.append(logits_GV[chosen])
            done += len(part)
        assert cache is not None  # there is a row
        cache.advance(width)
        lengths = [len(self.prompts[row.task]) for row in rows]
        return _Batch(cache, valid_BS, torch.tensor(lengths, device=device), torch.cat(logits))

    def _parts(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Consecutive rows of one family whose prompts together stay within a bounded forward pass."""
        part: list[_Row] = []
        prompts = longest = 0
        for row in rows:
            new = not part or row.task != part[-1].task
            prompts, longest = prompts + new, max(longest, len(self.prompts[row.task]))
            other = bool(part) and self.tasks[row.task].ref.config != self.tasks[part[0].task].ref.config
            if part and new and (other or prompts * longest > _PREFILL_TOKENS):
                yield part
                part, prompts, longest = [], 1, len(self.prompts[row.task])
            part.append(row)
        yield part

    def _part(self, rows: Sequence[_Row]) -> tuple[SlotCache, Tensor, Tensor]:
        """Keys and values, valid slots [G, S] and last scores [G, V] of the prompts of one family's rows."""
        prompts = [self.prompts[task] for task in dict.fromkeys(row.task for row in rows)]
        prefix = self._prefix(self.tasks[rows[0].task].ref.config)
        shared = 0 if prefix is None else prefix.filled
        rest = [prompt[shared:] for prompt in prompts]
        width = max(map(len, rest))
        device = self.policy.device
        pads_G = torch.tensor([width - len(ids) for ids in rest], device=device)
        ids_GR = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in rest], device=device)
        slots_R = torch.arange(width, device=device)
        real_GR = slots_R >= pads_G[:, None]
        positions_GR = (shared + slots_R - pads_G[:, None]).clamp(min=0)
        cache = SlotCache(shared + width)
        if prefix is not None:
            cache = prefix.like(len(rest), shared + width)
            cache.receive(prefix, slice(None), torch.zeros(len(rest), dtype=torch.long, device=device), 0)
            cache.advance(shared)
        causal_RR = slots_R[:, None] >= slots_R
        own_GRR = (causal_RR & real_GR[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
        mask_GRS = torch.cat([own_GRR.new_ones((len(rest), width, shared)), own_GRR], -1)
        logits_GV = _forward(self.policy, ids_GR, mask_GRS, positions_GR, cache)
        return cache, torch.cat([real_GR.new_ones((len(rest), shared)), real_GR], 1), logits_GV

    def _prefix(self, family: bytes) -> SlotCache | None:
        if family not in self._prefixes:
            ids = _common(self._of_family[family])
            self._prefixes[family] = self._computed(ids) if ids else None
        return self._prefixes[family]

    def _computed(self, ids: tuple[int, ...]) -> SlotCache:
        cache, num = SlotCache(len(ids)), len(ids)
        slots = torch.arange(num, device=self.policy.device)
        ids_GR = torch.tensor([ids], device=self.policy.device)
        _forward(self.policy, ids_GR, (slots[:, None] >= slots)[None], slots[None], cache)
        return cache


def _common(prompts: set[tuple[int, ...]]) -> tuple[int, ...]:
    """The ids all prompts begin with, always short of a whole prompt; nothing where there is one prompt only."""
    first, last = min(prompts), max(prompts)
    if first == last:
        return ()
    most = min(map(len, prompts)) - 1
    length = next((i for i in range(most) if first[i] != last[i]), most)
    return first[:length]


def _forward(policy: Policy, ids_BR: Tensor, mask_BRS: Tensor, positions_BR: Tensor, cache: SlotCache) -> Tensor:
    """Run the module over new tokens and return the scores of the last one, [B, V], float32."""
    out: Any = policy.model(
        input_ids=ids_BR,
        attention_mask=mask_BRS[:, None],
        position_ids=positions_BR,
        use_cache=True,
        logits_to_keep=1,
        **{_cache_keyword(policy.model.__class__): cache},
    )
    cache.advance(ids_BR.shape[1])
    return out.logits[:, -1].float()


@lru_cache(maxsize=64)
def _cache_keyword(kind: Any) -> str:
    """What a kind of module calls its cache; transformers renames it."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def _decode(
    policy: Policy,
    tasks: Sequence[Task],
    rows: Sequence[_Row],
    prefill: _Prefill,
    sampling: Sampling,
    watch: Watch | None,
) -> list[Completion]:
    """Draw until every row has ended. `rows` are sorted by falling limit."""
    batch, device, most = prefill(rows), policy.device, rows[0].limit
    stops = torch.tensor(policy.stop_ids, device=device)
    limits_B = torch.tensor([row.limit for row in rows], device=device)
    uniforms_BT = _uniforms(tasks, rows, sampling, most).to(device)
    ids_BT = torch.zeros((len(rows), most), dtype=torch.long, device=device)
    logprobs_BT = torch.zeros((len(rows), most), device=device)
    lengths_B = torch.zeros_like(limits_B)
    live_B = torch.arange(len(rows), device=device)  # row of each batch line
    going_B = torch.ones_like(live_B, dtype=torch.bool)
    for step in range(most):
        chosen_B, logprob_B = draw(batch.logits_BV, sampling, uniforms_BT[live_B, step])
        ids_BT[live_B, step], logprobs_BT[live_B, step] = chosen_B, logprob_B
        ended_B = torch.isin(chosen_B, stops) | (step + 1 >= limits_B[live_B])
        if watch:
            ended_B |= _watched(watch, [rows[line] for line in live_B.tolist()], going_B, chosen_B)
        lengths_B[live_B[going_B & ended_B]] = step + 1
        going_B &= ~ended_B
        left = int(going_B.sum())
        if not left:
            break
        if left < _COMPACT_AT * len(live_B):
            kept = going_B.nonzero()[:, 0]
            batch.cache.keep(kept)
            batch.valid_BS, batch.positions_B = batch.valid_BS[kept], batch.positions_B[kept]
            chosen_B, live_B, going_B = chosen_B[kept], live_B[kept], going_B[kept]
        mask_B1S = batch.valid_BS[:, None, : batch.cache.filled + 1]
        batch.logits_BV = _forward(policy, chosen_B[:, None], mask_B1S, batch.positions_B[:, None], batch.cache)
        batch.positions_B = batch.positions_B + 1
    return _completions(policy, ids_BT, logprobs_BT, lengths_B)


def _watched(watch: Watch, rows: Sequence[_Row], going_B: Tensor, chosen_B: Tensor) -> Tensor:
    """Tell of every answer that has not ended; which of them are to end, bool [B]."""
    told = zip(rows, going_B.tolist(), chosen_B.tolist(), strict=True)
    ends = [going and watch(row.task, row.number, chosen) for row, going, chosen in told]
    return torch.tensor(ends, dtype=torch.bool, device=chosen_B.device)


def _uniforms(tasks: Sequence[Task], rows: Sequence[_Row], sampling: Sampling, num: int) -> Tensor:
    """One number for each row and position, shape [B, T]."""
    seeds = [seed_for("row", sampling.seed, tasks[row.task].question, row.number) for row in rows]
    keys_B1 = np.array(seeds, np.uint64)[:, None]
    values_BT = uniforms(keys_B1, np.arange(num, dtype=np.uint64)[None])
    return torch.from_numpy(np.minimum(values_BT, _LAST_UNIFORM).astype(np.float32))


def draw(logits_BV: Tensor, sampling: Sampling, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """One id for each row and its log-probability, both [B].

    Args:
        logits_BV: scores, float32.
        sampling: temperature, top-k, then top-p, in this order, each on what the one before left.
        uniforms_B: numbers in [0, 1 - 2**-22].
    """
    scaled_BV = logits_BV if sampling.temperature in (0, 1) else logits_BV / sampling.temperature
    logprobs_BV = torch.log_softmax(scaled_BV, -1)
    if sampling.temperature == 0:
        chosen_B = logits_BV.argmax(-1)
    else:
        mass_BV = _truncated(logprobs_BV, sampling).exp().cumsum(-1)
        target_B1 = (uniforms_B * mass_BV[:, -1])[:, None]
        chosen_B = torch.searchsorted(mass_BV, target_B1, right=True)[:, 0].clamp(max=mass_BV.shape[1] - 1)
    return chosen_B, logprobs_BV.gather(1, chosen_B[:, None])[:, 0]


def _truncated(logprobs_BV: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities with minus infinity for every id that top-k and top-p leave out."""
    if 0 < sampling.top_k < logprobs_BV.shape[1]:
        least_B1 = logprobs_BV.topk(sampling.top_k).values[:, -1:]
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < least_B1, -torch.inf)
    if sampling.top_p < 1:
        sorted_BV, order_BV = logprobs_BV.softmax(-1).sort(-1, descending=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        beyond_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= sampling.top_p)
        logprobs_BV = logprobs_BV.masked_fill(beyond_BV, -torch.inf)
    return logprobs_BV


def _completions(policy: Policy, ids_BT: Tensor, logprobs_BT: Tensor, lengths_B: Tensor) -> list[Completion]:
    if not logprobs_BT.isfinite().all():
        raise ModelError(
            f"{policy.name} gives scores that are not numbers; its training diverged, go back a checkpoint"
        )
    values_BT = logprobs_BT.cpu().numpy().astype("<f4")
    answers = []
    for row, (ids, length) in enumerate(zip(ids_BT.tolist(), lengths_B.tolist(), strict=True)):
        body = tuple(ids[:length])
        tokens = Tokens(policy.tokenizer_digest, body, values_BT[row, :length].tobytes())
        ended = body[-1] in policy.stop_ids
        answers.append(Completion((Text(policy.decode(body)),), "stop" if ended else "length", tokens))
    return answers
