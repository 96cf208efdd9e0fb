"""Two models small enough to build in code: random Llamas with byte-level tokenizers, for trying things and for tests.

`tiny` spells every byte; `tiny-b` joins some pairs, so that the two cannot exchange ids. About 0.2 M parameters.
The weights follow from the seed on every machine. Matrices start at 1/sqrt(inputs) rather than the usual 0.02:
attention then matters to the output, and a wrong mask shows.
"""

from typing import Any

import numpy as np
import torch

from waggle.core.rng import rng_for

NAMES = ("tiny", "tiny-b")
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PAIRS = ("= ", " +", " -", "er", "in", "th", "on", "an", "he", "re", "12", "00", "us", "as")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(name: str, seed: int) -> tuple[Any, Any]:
    """The model and the tokenizer."""
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(configuration(name))
    rng = rng_for(name, seed)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 2:
                values = rng.standard_normal(tensor.shape) * tensor.shape[1] ** -0.5
                tensor.copy_(torch.from_numpy(values.astype(np.float32)))
    return model, _tokenizer(_pairs(name))


def configuration(name: str) -> Any:
    """The shape of a tiny model."""
    from transformers import LlamaConfig

    hidden = 48 if name == "tiny-b" else 64
    return LlamaConfig(
        vocab_size=len(_SPECIALS) + 256 + len(_pairs(name)),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )


def _pairs(name: str) -> tuple[str, ...]:
    return _PAIRS if name == "tiny-b" else ()


def _tokenizer(pairs: tuple[str, ...]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    visible = [(pair[0].replace(" ", "Ġ"), pair[1].replace(" ", "Ġ")) for pair in pairs]
    words = [*_SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in visible)]
    core = Tokenizer(models.BPE(vocab={word: id for id, word in enumerate(words)}, merges=visible))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token=_SPECIALS[0], bos_token=_SPECIALS[1], eos_token=_SPECIALS[2]
    )
    tokenizer.pad_token = _SPECIALS[2]
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
