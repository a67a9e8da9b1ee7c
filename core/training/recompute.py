"""Activation checkpointing of a model's blocks: what is kept for the backward pass, and what is computed again.

none        everything is kept (compiled blocks drop what is cheap to make again by themselves)
selective   outputs of matrix products and attention are kept; norms, rotations, activations are computed again
attention   only attention outputs are kept; matrix products are computed again too
full        only the block's input is kept
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from core.training import flash  # noqa: F401  the attention operator must be known before it is named

Level = Literal["none", "selective", "attention", "full"]
LEVELS = ("none", "selective", "attention", "full")


def _operators(*names: str) -> set[Any]:
    aten = torch.ops.aten
    return {getattr(aten, name).default for name in names if hasattr(aten, name)}


_ATTENTION = _operators(
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
) | {torch.ops.kernelmill.packed_attention.default}  # fmt: skip
_PRODUCTS = _operators("mm", "addmm", "bmm", "linear")


def _policy(kept: set[Any], ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def _keep_attention(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return _policy(_ATTENTION, ctx, operator)


def _keep_products(ctx: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return _policy(_ATTENTION | _PRODUCTS, ctx, operator)


def checkpoint_block(block: nn.Module, level: Level, *, random: bool = False) -> None:
    """Makes `block` forget activations by `level`. Before compiling and sharding it. random: it draws (dropout)."""
    if level == "none":
        return
    if level not in LEVELS:
        raise ValueError(f"unknown activation checkpointing {level!r}; known: {', '.join(LEVELS)}")
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": random}
    if level != "full":
        policy = _keep_attention if level == "attention" else _keep_products
        options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    inner: Callable[..., Any] = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, **options, **kwargs) if torch.is_grad_enabled() else inner(*args, **kwargs)

    block.forward = forward
