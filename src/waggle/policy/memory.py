"""The memory plan: what the nodes of a run will need at most, before a weight is loaded.

A node holds its weights, and for what it trains two moments of AdamW. On top comes the larger of two passing
needs, since a node trains or answers, never both: gradients, activations and scores of one packed row, or the
sampler's cache and scores. Nodes of one process take turns, so they share that part, and LoRA nodes the base.

The formulas count tensors; `_RUNTIME_BYTES` and `_HEAP_BYTES` were measured (SmolLM2-135M, float32, peak of the
resident set on Linux: tests/policy/test_memory.py repeats it). With room, all layers keep their activations and
freed memory stays with the process, which makes a training step a quarter faster. What does not fit is made smaller in
this order: that room, tokens of a packed row, the cache for answers, a LoRA adapter instead of all weights. What still
does not fit is refused.
Left out: the graders' processes, about 0.15 GB each; a tenth of the memory is left to them and everybody else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waggle.core.errors import ModelError
from waggle.policy import machine
from waggle.policy.adapter import TARGETS

KV_BYTES = 720 << 20
"""Cache of keys and values, with the scores of one step, that the sampler aims at: what training all weights needs."""
ACTIVATION_BYTES = 64 << 20
"""Activations that the trainer keeps for a packed row of `_FULL_ROW` tokens without room; shorter rows get less."""
_FULL_ROW = 1024
_LEAST_ROW, _LEAST_KV_BYTES = 256, 32 << 20
_PREFILL_TOKENS = 1024
_SCORE_BYTES = 32 << 20
"""Scores of one chunk, twice."""
_RUNTIME_BYTES = 600_000_000
"""Python, torch, transformers, the tokenizer, the question generators, and what the kernels keep."""
_DEVICE_BYTES = 600_000_000
"""What a GPU's own runtime takes."""
_HEAP_BYTES = 96 << 20
"""Freed blocks that the C library holds between two trims."""
_ROOMY_HEAP_BYTES = 768 << 20
"""Freed blocks that it holds where it is never told to trim."""
_SHARE = 0.9
_FALLBACK_RANK = 16


def kv_token_bytes(config: Any, value_bytes: int = 4) -> int:
    """Bytes of keys and values of one token over all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * 2 * heads * width * value_bytes)


def row_bytes(vocabulary: int) -> int:
    """Bytes of the scores of one row while a token is drawn: five arrays over the vocabulary."""
    return 5 * 4 * vocabulary


@dataclass(frozen=True)
class Sizes:
    """What counts about a model. Example: `Sizes("tiny", 164_480, 3_648, 3, 64, 192, 768, 16_576)`.

    `per_rank` is the number of adapter parameters for each unit of LoRA rank, `embedding` that of the embedding.
    """

    name: str
    parameters: int
    per_rank: int
    layers: int
    hidden: int
    intermediate: int
    kv_token_bytes: int
    embedding: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What a run may use, and the arithmetic. Sizes are bytes for all nodes together unless they say otherwise.

    `token_budget`, `activation_bytes`, `kv_bytes` and `lora_rank` are what each node is to be given.
    """

    sizes: Sizes
    nodes: int
    processes: int
    lora_rank: int
    token_budget: int
    kv_bytes: int
    budget_bytes: int
    on_gpu: bool = False
    bfloat16: bool = False
    roomy: bool = False
    """Whether all layers keep their activations, and the process the memory it frees (`machine.keep_heap`)."""
    notes: tuple[str, ...] = ()

    @property
    def activation_bytes(self) -> int:
        """Activations that a node's trainer may keep."""
        if self.roomy:
            return 4 * self.token_budget * self.sizes.layers * (8 * self.sizes.hidden + 5 * self.sizes.intermediate)
        return ACTIVATION_BYTES * min(self.token_budget, _FULL_ROW) // _FULL_ROW

    @property
    def trained(self) -> int:
        """Parameters that a node trains."""
        return self.lora_rank * self.sizes.per_rank if self.lora_rank else self.sizes.parameters

    @property
    def train_bytes(self) -> int:
        """Passing need of a training step: gradients, and the larger of two that are never there together.

        Those are a row's activations (what is kept, the inputs of all layers, one layer's work, scores) and, at the
        end of the backward pass, the gradient of the embedding before it is added to that of the output layer.
        """
        s = self.sizes
        per_token = 4 * (s.layers * s.hidden + 8 * s.hidden + 6 * s.intermediate)
        heap_bytes = _ROOMY_HEAP_BYTES if self.roomy else _HEAP_BYTES
        row = self.activation_bytes + heap_bytes + self.token_budget * per_token + _SCORE_BYTES
        embedding = 0 if self.lora_rank else 4 * s.embedding + 2 * _SCORE_BYTES
        return 4 * self.trained + max(row, embedding)

    @property
    def answer_bytes(self) -> int:
        """Passing need of answering: the sampler's cache, and a forward pass over prompts."""
        s = self.sizes
        per_token = s.kv_token_bytes + 4 * (6 * s.hidden + 4 * s.intermediate)
        return self.kv_bytes + _PREFILL_TOKENS * per_token

    def parts(self) -> Iterator[tuple[str, int]]:
        """Names and bytes, in the order of the arithmetic."""
        copies = self.processes if self.lora_rank else self.nodes
        yield "runtime", (_DEVICE_BYTES if self.on_gpu else _RUNTIME_BYTES) * self.processes
        yield "weights", 4 * self.sizes.parameters * copies
        if self.bfloat16:
            yield "weights in bfloat16", 2 * self.sizes.parameters * self.processes
        if self.lora_rank:
            yield "adapters", 4 * self.trained * self.nodes
        yield "moments", 8 * self.trained * self.nodes
        name = "a training step" if self.train_bytes >= self.answer_bytes else "answers"
        yield name, max(self.train_bytes, self.answer_bytes) * self.processes

    @property
    def need_bytes(self) -> int:
        """The peak, by the arithmetic."""
        return sum(size for _, size in self.parts())

    def lines(self) -> list[str]:
        """The plan in words, for people."""
        how = f"LoRA rank {self.lora_rank}" if self.lora_rank else "all weights"
        head = f"memory: {self.nodes} x {self.sizes.name} ({self.sizes.parameters / 1e6:.1f} M parameters, {how})"
        if self.processes > 1:
            head += f" in {self.processes} processes"
        rows = f"rows of {self.token_budget} tokens, {_megabytes(self.activation_bytes)} of activations, "
        rows += f"{_megabytes(self.kv_bytes)} of cache for answers"
        return [head, self.arithmetic(), rows, *self.notes]

    def arithmetic(self) -> str:
        """The sum, e.g. `runtime 0.42 + weights 0.54 + ... = 2.95 GB of 20.1 GB`."""
        terms = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in self.parts())
        return f"{terms} = {self.need_bytes / 1e9:.2f} GB of {self.budget_bytes / 1e9:.2f} GB"


def plan(
    name: str,
    *,
    lora_rank: int = 0,
    token_budget: int = 1024,
    nodes: int = 1,
    processes: int = 1,
    memory_gb: float = 0.0,
    device: str = "auto",
    precision: str = "auto",
    cache: Path | None = None,
) -> MemoryPlan:
    """Plan `nodes` nodes with this model, spread over `processes`, before anything is loaded.

    Args:
        memory_gb: what they may use together, in GB of 10**9 bytes; 0 takes 90 % of what is free.

    Raises:
        ModelError: where the model cannot be found, or does not fit however small it is made.
    """
    from waggle.policy.load import choose

    chosen, number, _ = choose(device, precision)
    sizes, rank = measure(name, cache)
    budget_bytes = int(memory_gb * 1e9) or int(_SHARE * _free_bytes(chosen))
    wanted = MemoryPlan(
        sizes=sizes,
        nodes=nodes,
        processes=processes,
        lora_rank=lora_rank or rank,
        token_budget=token_budget,
        kv_bytes=KV_BYTES,
        budget_bytes=budget_bytes,
        on_gpu=chosen != "cpu",
        bfloat16=number == "bfloat16",
        roomy=True,
    )
    return fit(wanted)


def fit(wanted: MemoryPlan) -> MemoryPlan:
    """The plan itself, or the first smaller one that fits.

    Raises:
        ModelError: with the arithmetic of the smallest.
    """
    tried = list(_smaller(wanted))
    if not wanted.lora_rank:
        tried += _smaller(replace(wanted, lora_rank=_FALLBACK_RANK))
    for candidate in tried:
        if candidate.need_bytes <= candidate.budget_bytes:
            return replace(candidate, notes=tuple(_changes(wanted, candidate)))
    least = min(tried, key=lambda candidate: candidate.need_bytes)
    raise ModelError(
        f"{wanted.nodes} x {wanted.sizes.name} does not fit into memory even at its smallest: {least.arithmetic()}; "
        "use fewer nodes, a smaller model, or raise model.memory_gb"
    )


def _smaller(plan: MemoryPlan) -> Iterator[MemoryPlan]:
    """This plan, and after it each that needs less; what needs more of the two passing needs is shrunk first."""
    yield plan
    if plan.roomy:
        plan = replace(plan, roomy=False)
        yield plan
    while True:
        if plan.train_bytes >= plan.answer_bytes and plan.token_budget > _LEAST_ROW:
            plan = replace(plan, token_budget=max(_LEAST_ROW, plan.token_budget // 2))
        elif plan.answer_bytes > plan.train_bytes and plan.kv_bytes > _LEAST_KV_BYTES:
            plan = replace(plan, kv_bytes=plan.kv_bytes // 2)
        else:
            return
        yield plan


def _changes(wanted: MemoryPlan, got: MemoryPlan) -> Iterator[str]:
    """What was made smaller, in words."""
    if got.lora_rank != wanted.lora_rank:
        yield f"all weights do not fit, so a LoRA adapter of rank {got.lora_rank} is trained instead"
    if got.roomy != wanted.roomy:
        yield "activations do not all fit: early layers are computed twice, and a training step takes a third longer"
    if got.token_budget != wanted.token_budget:
        yield f"rows have {got.token_budget} tokens instead of {wanted.token_budget}"
    if got.kv_bytes != wanted.kv_bytes:
        yield f"the cache for answers has {_megabytes(got.kv_bytes)} instead of {_megabytes(wanted.kv_bytes)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _free_bytes(device: str) -> int:
    """Memory that can be planned for; what this process holds already is part of every plan."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return machine.available_bytes() + machine.resident_bytes()


def measure(name: str, cache: Path | None = None) -> tuple[Sizes, int]:
    """The sizes of a model, from its configuration alone, and the rank of the adapter that it comes with or 0.

    Raises:
        ModelError: where the model cannot be found or its configuration cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from waggle.policy.load import describe

    config, rank = describe(name, cache)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    linear = [
        m for path, m in model.named_modules() if path.rpartition(".")[2] in TARGETS and hasattr(m, "in_features")
    ]
    hidden = int(config.hidden_size)
    sizes = Sizes(
        name=name,
        parameters=sum(tensor.numel() for tensor in model.parameters()),
        per_rank=sum(m.in_features + m.out_features for m in linear),
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        kv_token_bytes=kv_token_bytes(config),
        embedding=model.get_input_embeddings().weight.numel(),
    )
    return sizes, rank
