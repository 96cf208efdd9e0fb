import torch

from waggle.policy import tiny
from waggle.policy.load import load


def test_weights_follow_from_the_seed_on_every_machine() -> None:
    assert load("tiny").content_digest().hex()[:16] == "30a2c0180ba93046"
    assert load("tiny", seed=4).content_digest() == load("tiny:4").content_digest() != load("tiny").content_digest()


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    tiny.build("tiny", 0)
    assert torch.rand(1) == expected


def test_both_are_small_and_their_scores_are_not_flat() -> None:
    for name in tiny.NAMES:
        model, tokenizer = tiny.build(name, 0)
        assert sum(p.numel() for p in model.parameters()) < 1_000_000
        assert model.config.vocab_size == len(tokenizer)
        with torch.no_grad():
            assert model(input_ids=torch.arange(20)[None]).logits.std() > 0.5
