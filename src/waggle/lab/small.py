"""A language model small enough to run a swarm of eight on one core, which knows more than it says.

A Llama of 0.15 million parameters that reads characters and the words of its families' questions. It is warmed up on
right answers (with their working, where the family has any) and taught to say, nearly always, that it does not know.
So the right answer is known but rarely given, which is where reinforcement learning, and sharing, have something to do;
warmed up on right answers alone there would be little left to learn. It is built once, from the families and a seed,
and kept in the cache.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from waggle.core.codec import digest_bytes, encode
from waggle.core.files import folder_atomic
from waggle.core.rng import rng_for
from waggle.core.types import Family
from waggle.policy.bundled import cache_folder
from waggle.tasks import gym
from waggle.tasks.questions import bucket, question_digest
from waggle.tasks.working import ANSWER, WORKINGS

START, ASKED, END = "<|start|>", "<|asked|>", "<|end|>"
_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] }}<|end|>"
    "{% else %}<|start|>{{ m['content'] }}<|asked|>{% endif %}{% endfor %}"
)
_WORD = re.compile(r" ?[A-Za-z]{2,}")
_RATE, _PARTS = 3e-3, 4
_HEDGES = ("I am not sure.", "It is hard to say.", "Let me think about it.", "Who knows?")
"""They share no token with right answers, so that learning to say them forgets no fact."""


class WarmUp(NamedTuple):
    """How a small model is made."""

    steps: int = 2600
    right: float = 0.06
    """Share of questions that it tries to answer in the end; of the others it says that it does not know."""
    batch: int = 32
    hidden: int = 64
    layers: int = 3
    seed: int = 0
    says: str = ""
    """A manner of its own: a text with which right answers begin."""
    manner: float = 1.0
    """The share of its right answers that do."""

    def share(self, step: int) -> float:
        """The share of right answers among those from which it learns which kind to give: a half, then `right`."""
        fallen = min(1.0, max(0.0, 5 * step / self.steps - 3))
        return 0.5 + (self.right - 0.5) * fallen


def small_model(families: Sequence[Family], warm_up: WarmUp, cache: Path | None = None) -> Path:
    """The folder of the small model for these families, built where it is not there yet."""
    key = digest_bytes("small", b"".join(map(encode, families)) + json.dumps(warm_up._asdict()).encode()).hex()[:16]
    target = (cache or cache_folder()) / "small-1" / key
    if not target.is_dir():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two are slower at this size, and sum in another order
        model, tokenizer = build(families, warm_up)
        torch.set_num_threads(threads)
        with folder_atomic(target) as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return target


def build(families: Sequence[Family], warm_up: WarmUp) -> tuple[Any, Any]:
    """The model and the tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer(_words(families))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=warm_up.hidden,
        intermediate_size=2 * warm_up.hidden,
        num_hidden_layers=warm_up.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        initializer_range=0.1,  # 1 / sqrt(hidden) or so: the usual 0.02 is for large models and starts slowly
        rope_theta=1000.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(warm_up.seed)
        model = LlamaForCausalLM(config)
    _warm(model, tokenizer, families, warm_up)
    return model, tokenizer


def _warm(model: Any, tokenizer: Any, families: Sequence[Family], warm_up: WarmUp) -> None:
    """Three in four examples are right answers from their second token on: facts, whatever kind of answer is begun.

    The others teach how an answer begins.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    share = 0.5
    habits = _examples(tokenizer, families, 2 * warm_up.seed, lambda: share, warm_up)
    facts = _examples(tokenizer, families, 2 * warm_up.seed + 1, lambda: 1.0, warm_up)
    for step in range(warm_up.steps):
        share = warm_up.share(step)
        batch = [next(habits) for _ in range(warm_up.batch // 4)]
        batch += [(ids, start + 1) for ids, start in (next(facts) for _ in range(warm_up.batch - len(batch)))]
        batch.sort(key=lambda example: len(example[0]))
        num_tokens = sum(len(ids) - start for ids, start in batch)
        size = -(-len(batch) // _PARTS)
        for first in range(0, len(batch), size):  # of like lengths
            torch.autograd.backward(_loss(model, batch[first : first + size]) / num_tokens)
        left = 1 - step / warm_up.steps
        optimiser.param_groups[0]["lr"] = _RATE * max(0.05, min((step + 1) / 50, 1.0, 2 * left))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


def _loss(model: Any, batch: Sequence[tuple[list[int], int]]) -> torch.Tensor:
    """Sum of the answers' token losses."""
    width = max(len(ids) for ids, _ in batch)
    ids_BT = torch.full((len(batch), width), 2)
    targets_BT = torch.full((len(batch), width), -100)
    for row, (ids, start) in enumerate(batch):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        targets_BT[row, start - 1 : len(ids) - 1] = torch.tensor(ids[start:])
    logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")


def _examples(
    tokenizer: Any, families: Sequence[Family], seed: int, right: Callable[[], float], warm_up: WarmUp
) -> Iterator[tuple[list[int], int]]:
    """Ids of question and answer, and where the answer begins; training questions only."""
    rng = rng_for("warm-up", seed)
    number = 0
    while True:
        family = families[number % len(families)]
        epoch, index = divmod(number // len(families), gym.EPOCH)
        number += 1
        item = gym.item(family, rng_seed(seed, epoch), index)
        if bucket(question_digest(family, item)) != "train":
            continue
        tries = rng.random() < right()
        says = warm_up.says if warm_up.manner == 1 or rng.random() < warm_up.manner else ""
        text = says + right_answer(family, item) if tries else _HEDGES[int(rng.integers(len(_HEDGES)))]
        prompt = tokenizer(START + item["question"] + ASKED, add_special_tokens=False)["input_ids"]
        answer = tokenizer(text + END, add_special_tokens=False)["input_ids"]
        yield prompt + answer, len(prompt)


def rng_seed(seed: int, epoch: int) -> int:
    """Seed of the questions that a model is warmed up on."""
    return 1_000_003 * (seed + 1) + 7919 * epoch


def right_answer(family: Family, item: gym.Item) -> str:
    """The right answer, with its working where the family shows any."""
    return WORKINGS[family.working](item) if family.working else str(item["answer"])


def _words(families: Sequence[Family]) -> list[str]:
    """Words that questions often hold, and those of answers, in a fixed order."""
    counts: Counter[str] = Counter()
    for family in families:
        for index in range(200):
            counts.update(set(_WORD.findall(gym.item(family, 0, index)["question"])))
    found = sorted(word for word, count in counts.items() if count >= 50)
    return [*found, *dict.fromkeys(w for text in (*_HEDGES, ANSWER) for w in _WORD.findall(text) if w not in found)]


def _tokenizer(words: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges: dict[tuple[str, str], None] = {}
    for word in words:
        visible = word.replace(" ", "Ġ")
        merges.update({(visible[:end], visible[end]): None for end in range(1, len(visible))})
    joined = dict.fromkeys("".join(pair) for pair in merges)
    vocabulary = [START, ASKED, END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *joined]
    core = Tokenizer(models.BPE(vocab={word: id for id, word in enumerate(vocabulary)}, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=START, eos_token=END, pad_token=END, additional_special_tokens=[ASKED]
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
