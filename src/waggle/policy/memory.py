"""What a node will need, before it starts. (Sizes of single things; the plan follows.)"""

from typing import Any


def kv_token_bytes(config: Any, value_bytes: int = 4) -> int:
    """Bytes of keys and values of one token over all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * 2 * heads * width * value_bytes)


def row_bytes(vocabulary: int) -> int:
    """Bytes of the scores of one row while a token is drawn: five arrays over the vocabulary."""
    return 5 * 4 * vocabulary
