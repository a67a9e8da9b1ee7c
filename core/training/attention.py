"""Causal attention over packed rows, without contamination between the sequences of a row.

A model is loaded with `attn_implementation = NAME` and called with `**attention_kwargs(lengths, cu_seqlens)`; the
keywords travel through the model to `packed_attention`. Two ways to compute the same:

    one operator      `core.training.flash`, on CUDA in half precision: flash-attention or cuDNN
    by rows           elsewhere: sequences are laid into rows of one length for SDPA; under a causal mask the padding at
                      the end of a row is after every real token and so needs no mask. Sequences of unlike lengths go
                      into different calls, so that little of the work is padding.

Without these keywords (generation, evaluation of single rows) it is plain causal attention.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from core.training import flash
from core.training.context import Split
from core.training.flash import rows_of

NAME = "kernelmill_packed"


def register() -> str:
    """Makes the attention known to transformers (any number of times) and returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
    return NAME


def attention_kwargs(
    lengths: Sequence[int], cu_seqlens: Tensor, dtype: torch.dtype, backend: str = "auto", split: Split | None = None
) -> dict[str, Any]:
    """Keywords for the model's forward.

    lengths: tokens of every sequence in the row. cu_seqlens: int32 [sequences + 1] on the model's device. dtype: of the
    model's activations. backend: one of `flash.BACKENDS`, for half precision on CUDA.
    """
    half = cu_seqlens.is_cuda and dtype in (torch.bfloat16, torch.float16)
    if split is not None:
        return {"packed_key": flash.remember(flash.split_layout(split, cu_seqlens, half))}
    if backend == "written" or half:
        return {"packed_key": flash.remember(flash.make_layout(lengths, cu_seqlens, backend))}
    calls, back = rows_of(lengths)
    device = cu_seqlens.device
    return {
        "packed_rows": [index.view(rows, length).to(device) for rows, length, index in calls],
        "packed_back": back.to(device),
    }


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_key: Tensor | None = None,
    packed_rows: list[Tensor] | None = None,
    packed_back: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """The attention of one layer, in the shape that transformers asks for.

    query: [1, heads, tokens, head_dim]; key, value: [1, kv_heads, tokens, head_dim].
    Returns ([1, tokens, heads, head_dim], None).
    """
    if dropout:
        raise ValueError("packed attention has no dropout: set attention_dropout = 0 in the model's config")
    if unused.get("sliding_window") is not None:
        raise ValueError("packed attention has no sliding window: such models are not supported")
    if unused.get("s_aux") is not None or unused.get("softcap") is not None:
        raise ValueError("packed attention has no sinks and no soft cap of its scores: such models are not supported")
    if packed_key is None and packed_rows is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None and query.shape[2] > 1,
            scale=scaling, enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        return out.transpose(1, 2), None
    if query.shape[0] != 1:
        raise ValueError(f"packed rows come one at a time, got {query.shape[0]}")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if packed_key is not None:
        scale = scaling if scaling is not None else q.shape[-1] ** -0.5
        out, _ = torch.ops.kernelmill.packed_attention(q, k, v, packed_key, scale)
        return out[None], None
    assert packed_rows is not None and packed_back is not None
    return _by_rows(q, k, v, packed_rows, packed_back, scaling)[None], None


def _by_rows(q: Tensor, k: Tensor, v: Tensor, rows: list[Tensor], back: Tensor, scaling: float | None) -> Tensor:
    """q [tokens, heads, dim], k and v [tokens, kv_heads, dim] -> [tokens, heads, dim]"""

    def lay(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index.view(-1)).view(*index.shape, *x.shape[1:]).transpose(1, 2)

    outs = [
        F.scaled_dot_product_attention(
            lay(q, index), lay(k, index), lay(v, index), is_causal=True, scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        ).transpose(1, 2).flatten(0, 1)
        for index in rows
    ]  # fmt: skip
    return torch.cat(outs).index_select(0, back)
