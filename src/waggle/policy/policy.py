"""A language model that can answer and score: a transformers module, its tokenizer, and how they are used together.

Design, sections 2 and 4 rule 5: tokens in, tokens out. `Policy` owns what must be the same on both sides of
training: how a prompt becomes ids, which ids end an answer, which parameters move, in which precision we compute.
The module is used through its public interface alone, so that any causal language model with full attention in
every layer works. Left out: encoder-decoder models, recurrent and sliding-window layers (the loader refuses them),
dropout (forced to zero, so there is no train or eval mode to forget).
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import nn

from waggle.core.codec import digest_bytes
from waggle.core.errors import ModelError
from waggle.core.types import Completion, Message, Sampling, Task

_ENDINGS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
_PROBE = "Waggle 12345 + 67 = 12412?\n\tcafé  naïve 舞 🐝 don't"


class Generate(Protocol):
    """Anything that answers: our own decode loop, or a bigger engine behind the same call."""

    def __call__(self, tasks: Sequence[Task], num: int, sampling: Sampling) -> list[list[Completion]]:
        """`num` completions for each task, in the order of `tasks`."""
        ...


@dataclass(eq=False)
class Policy:
    """A model and its tokenizer. Example: `load("tiny")`.

    `model` is the transformers module (LoRA layers are injected into it), in eval mode, with float32 weights.
    `base` is what the weights came from: a folder or hub id that transformers can load, or a built-in name.
    `choice` says in words where and how it computes, and why. `adapter` is the peft wrapper of a LoRA policy.
    `kv_bytes` bounds the sampler's cache.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    device: torch.device
    precision: Literal["float32", "bfloat16"]
    choice: str = ""
    base: str = ""
    adapter: Any = field(default=None, repr=False)
    kv_bytes: int = 256 << 20
    stop_ids: tuple[int, ...] = field(init=False)
    tokenizer_digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.stop_ids = _stop_ids(self.model, self.tokenizer)
        if not self.stop_ids:
            raise ModelError(
                f"{self.name} names no end-of-sequence token, so its answers would never end; "
                "set eos_token_id in its generation_config.json"
            )
        self.tokenizer_digest = _tokenizer_digest(self.tokenizer, self.stop_ids)

    @property
    def lora(self) -> bool:
        """Whether an adapter is trained instead of all weights."""
        return self.adapter is not None

    @property
    def vocabulary(self) -> int:
        """Number of ids the model can score; ids at or above it are not its own."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer together."""
        config = self.model.config
        limits = [getattr(config, key, None) for key in ("max_position_embeddings", "sliding_window")]
        return min([int(limit) for limit in limits if limit], default=1 << 20)

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and tensors that training moves, always in the same order; tied tensors once."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def copy_from(self, other: "Policy") -> None:
        """Take the weights of a policy of the same kind.

        Raises:
            ModelError: it trains other tensors.
        """
        theirs = dict(other.parameters())
        with torch.no_grad():
            for name, mine in self.parameters():
                if name not in theirs or theirs[name].shape != mine.shape:
                    raise ModelError(f"{other.name} does not hold {name} as {self.name} trains it")
                mine.copy_(theirs[name])

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Compute in the policy's precision inside this block."""
        enabled = self.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled):
            yield

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of a chat that the model is to continue as assistant.

        A tokenizer without a chat template gets `User: ...`, `Assistant: ...`, one turn a paragraph.

        Raises:
            ModelError: where the template refuses the messages.
        """
        chat = [{"role": m.role, "content": m.content} for m in messages]
        if self.tokenizer.chat_template is None:
            return (*_bos(self.tokenizer), *self._ids(_plain_chat(messages)))
        return self._ids(_render(self.tokenizer, chat, self.name, add_generation_prompt=True))

    def encode_text(self, text: str, finish: Literal["stop", "length"] = "stop") -> tuple[int, ...]:
        """The ids of a completion known only as text; one that ended by itself gets the id that ends a turn.

        Text never becomes a special token, whatever it spells.
        """
        ids = self._ids(text, split_special_tokens=True)
        return (*ids, self.stop_ids[0]) if finish == "stop" else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a completion, without the id that ended it and without special tokens."""
        body = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        text: str = self.tokenizer.decode(body, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def content_digest(self) -> bytes:
        """Digest over names, types, shapes and bytes of all weights, adapter included, 32 bytes."""
        state = hashlib.sha256()
        for name, tensor in sorted(self.model.named_parameters()):
            data = tensor.detach().to("cpu").contiguous()
            state.update(f"{name}:{data.dtype}:{tuple(data.shape)}\n".encode())
            state.update(memoryview(data.flatten().view(torch.uint8).numpy()))
        return digest_bytes("Weights", state.digest())

    def _ids(self, text: str, **options: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])


def _bos(tokenizer: Any) -> tuple[int, ...]:
    wanted = getattr(tokenizer, "add_bos_token", False) and tokenizer.bos_token_id is not None
    return (tokenizer.bos_token_id,) if wanted else ()


def _plain_chat(messages: Sequence[Message]) -> str:
    turns = [m.content if m.role == "system" else f"{m.role.capitalize()}: {m.content}" for m in messages]
    return "\n\n".join([*turns, "Assistant:"])


def _render(tokenizer: Any, chat: list[dict[str, str]], name: str, add_generation_prompt: bool) -> str:
    """The chat as text. Templates that print today's date get a fixed one, so that ids never change by themselves."""
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=add_generation_prompt, date_string="01 Jan 2025"
        )
    except TemplateError as error:
        roles = ", ".join(turn["role"] for turn in chat)
        raise ModelError(f"the chat template of {name} refuses a chat of {roles}: {error}; use other roles") from error
    return text


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer, the one that ends a turn of the chat template first."""
    found: list[int] = [*_end_of_turn(tokenizer)]
    for source in (tokenizer, model.generation_config, model.config):
        ids = getattr(source, "eos_token_id", None)
        found += ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
    special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    found += [special[token] for token in _ENDINGS if token in special]
    return tuple(dict.fromkeys(int(id) for id in found))


def _end_of_turn(tokenizer: Any) -> tuple[int, ...]:
    """The special token that the chat template writes after an assistant's words, if it writes one."""
    if tokenizer.chat_template is None:
        return ()
    words = "Waggle"
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": words}]
    tail = _render(tokenizer, chat, "this model", add_generation_prompt=False).rpartition(words)[2]
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"][:1]
    return tuple(id for id in ids if id in tokenizer.added_tokens_decoder)


def _tokenizer_digest(tokenizer: Any, stop_ids: tuple[int, ...]) -> bytes:
    """What two peers must agree on to exchange ids: the vocabulary, the chat template, the stops, how text splits.

    The serialised tokenizer itself is not used: its form changes between versions of its library.
    """
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    probe = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    content = [vocabulary, tokenizer.chat_template, stop_ids, probe]
    return digest_bytes("Tokenizer", json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode())
