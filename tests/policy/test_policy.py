import copy
from typing import ClassVar

import pytest
import torch

from tests.policy.parts import bundled_policy
from waggle.core.errors import ModelError
from waggle.core.types import Message
from waggle.policy.load import load
from waggle.policy.policy import Policy

CHAT = (Message("system", "Be brief."), Message("user", "3 + 4 ="))


def text_of(policy: Policy, ids: tuple[int, ...]) -> str:
    return policy.tokenizer.decode(ids, skip_special_tokens=False)


def with_tokenizer(policy: Policy, **changes: object) -> Policy:
    tokenizer = copy.deepcopy(policy.tokenizer)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return Policy(policy.model, tokenizer, policy.name, policy.device, policy.precision)


def test_a_prompt_is_the_chat_up_to_the_assistants_words(tiny: Policy) -> None:
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n3 + 4 =<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tiny, tiny.encode_prompt(CHAT)) == expected


def test_without_a_template_a_prompt_is_plain_turns(tiny: Policy) -> None:
    plain = with_tokenizer(tiny, chat_template=None)
    assert text_of(plain, plain.encode_prompt(CHAT)) == "Be brief.\n\nUser: 3 + 4 =\n\nAssistant:"
    starting = with_tokenizer(tiny, chat_template=None)
    starting.tokenizer.add_bos_token = True
    assert starting.encode_prompt(CHAT) == (starting.tokenizer.bos_token_id, *plain.encode_prompt(CHAT))


def test_a_template_that_refuses_is_one_sentence(tiny: Policy) -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    strict = with_tokenizer(tiny, chat_template=template)
    with pytest.raises(ModelError, match="the chat template of tiny refuses a chat of system, user: no system"):
        strict.encode_prompt(CHAT)


def test_a_prompt_does_not_change_with_the_date(tiny: Policy) -> None:
    template = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
    dated = with_tokenizer(tiny, chat_template=template)
    assert text_of(dated, dated.encode_prompt(CHAT)) == "01 Jan 2025"


@pytest.mark.parametrize("text", ["7", "", "two words\n", "<|im_end|>", "naïve 舞 🐝"])
def test_text_becomes_ids_and_text_again(tiny: Policy, tiny_b: Policy, text: str) -> None:
    for policy in (tiny, tiny_b):
        stopped, cut = policy.encode_text(text, "stop"), policy.encode_text(text, "length")
        assert stopped == (*cut, policy.stop_ids[0])
        assert not set(cut) & set(policy.stop_ids), "text must not end an answer, whatever it spells"
        assert policy.decode(stopped) == policy.decode(cut) == text


def test_the_second_tiny_model_spells_otherwise(tiny: Policy, tiny_b: Policy) -> None:
    assert tiny.encode_text("the 12 = ") != tiny_b.encode_text("the 12 = ")
    assert len(tiny_b.encode_text("the 12 = ")) < len(tiny.encode_text("the 12 = "))
    assert tiny.tokenizer_digest != tiny_b.tokenizer_digest


def test_stop_ids_are_all_that_configuration_tokenizer_and_template_name() -> None:
    policy = load("tiny")
    assert policy.stop_ids == (2, 0)  # the end of a turn first, then the end of text
    policy.model.generation_config.eos_token_id = [2, 77]
    policy.model.config.eos_token_id = 78
    again = Policy(policy.model, policy.tokenizer, "tiny", policy.device, "float32")
    assert again.stop_ids == (2, 77, 78, 0)


def test_a_template_decides_which_id_ends_a_turn(tiny: Policy) -> None:
    template = "{% for m in messages %}{{ m['content'] }}<|endoftext|>{% endfor %}"
    assert with_tokenizer(tiny, chat_template=template).stop_ids[0] == 0


def test_a_model_without_an_end_is_refused() -> None:
    class Endless:
        chat_template = eos_token_id = None
        added_tokens_decoder: ClassVar[dict[int, object]] = {}

    policy = load("tiny")
    policy.model.config.eos_token_id = policy.model.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match="endless names no end-of-sequence token"):
        Policy(policy.model, Endless(), "endless", policy.device, "float32")


def test_equal_tokenizers_agree_and_others_do_not(tiny: Policy) -> None:
    assert load("tiny:5").tokenizer_digest == tiny.tokenizer_digest
    assert with_tokenizer(tiny).tokenizer_digest == tiny.tokenizer_digest
    assert with_tokenizer(tiny, chat_template="x").tokenizer_digest != tiny.tokenizer_digest
    assert with_tokenizer(tiny, padding_side="left").tokenizer_digest == tiny.tokenizer_digest
    more = with_tokenizer(tiny)
    more.tokenizer.add_tokens(["bee"])
    assert Policy(tiny.model, more.tokenizer, "x", tiny.device, "float32").tokenizer_digest != tiny.tokenizer_digest


def test_tokenizer_digests_are_the_same_everywhere(tiny: Policy, tiny_b: Policy) -> None:
    assert tiny.tokenizer_digest.hex()[:16] == "62e11f8a0cf29f94"
    assert tiny_b.tokenizer_digest.hex()[:16] == "94f7d983297ba2a7"


def test_the_content_digest_sees_one_changed_bit() -> None:
    policy = load("tiny")
    before = policy.content_digest()
    assert load("tiny").content_digest() == before
    weight = policy.model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight.view(torch.int32)[3, 4] ^= 1
    assert policy.content_digest() != before


def test_parameters_are_the_trainable_ones_in_a_fixed_order(tiny: Policy) -> None:
    names = [name for name, _ in tiny.parameters()]
    assert names == [name for name, _ in load("tiny:9").parameters()]
    assert len(names) == len(set(names)) == 29
    assert "lm_head.weight" not in names  # tied
    adapted = load("tiny", lora_rank=2).parameters()
    assert all("lora_" in name for name, _ in adapted)
    assert len(adapted) == 3 * 7 * 2


def test_the_context_is_the_smaller_of_positions_and_window() -> None:
    policy = load("tiny")
    assert policy.context == 8192
    policy.model.config.sliding_window = 512
    assert policy.context == 512


@pytest.mark.slow
def test_the_bundled_model_chats() -> None:
    policy = bundled_policy()
    assert policy.stop_ids == (2, 0)
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    question = "<|im_start|>user\n3 + 4 =<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(policy, policy.encode_prompt(CHAT[1:])) == system + question
    assert policy.encode_text("12 <|im_end|>", "stop")[-1] == 2
    assert policy.encode_text("12 <|im_end|>", "stop").count(2) == 1
    assert policy.vocabulary == 49152
