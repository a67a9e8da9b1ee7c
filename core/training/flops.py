"""How much arithmetic a step needs, and what share of a card's peak that is.

    mfu = (6·N + attention flops per token) × tokens/s ÷ peak

N counts the parameters that multiply a token: all but the embedding table, which is a look-up, and with the head,
which is a product also when it shares the table's weights. Attention is causal: a token at position t looks at t + 1
keys, so that a sequence of n tokens costs 6 · layers · heads · head_dim · n² (2 products of 2 flops, half the square,
3 passes). What is computed again (checkpointing) does not count. The head counts for every token although only trained
positions go through it, as it does for those who report MFU without it.
"""

from collections.abc import Sequence
from typing import Any

PEAK_BF16_TFLOPS = {"H100": 989.0, "H200": 989.0, "H800": 989.0, "A100": 312.0, "B200": 2250.0, "L40S": 362.0}
"""Dense bfloat16, by a part of the card's name; NVIDIA's data sheets (SXM)."""


def peak_flops(card: str) -> float | None:
    """Peak flop/s of a card by its name, or None for one that isn't known."""
    return next((tflops * 1e12 for name, tflops in PEAK_BF16_TFLOPS.items() if name in card), None)


def multiplying_parameters(lm: Any) -> int:
    """N: parameters of a transformers causal LM without its embedding table, with its head."""
    table = lm.get_input_embeddings().weight
    head = lm.get_output_embeddings().weight
    return sum(p.numel() for p in lm.parameters()) - table.numel() + (head.numel() if head is table else 0)


def attention_flops(config: Any, lengths: Sequence[int]) -> float:
    """Flops of causal attention, forward and backward, over sequences of `lengths`."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 6.0 * config.num_hidden_layers * config.num_attention_heads * head_dim * sum(n * n for n in lengths)


def step_flops(parameters: int, config: Any, lengths: Sequence[int]) -> float:
    """Flops of training on sequences of `lengths` once."""
    return 6.0 * parameters * sum(lengths) + attention_flops(config, lengths)
