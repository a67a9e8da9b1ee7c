"""Causal attention over packed rows, without contamination between the sequences of a row.

A model is loaded with `attn_implementation = NAME` and called with `**attention_kwargs(lengths, cu_seqlens)`; the
keywords travel through the model to `packed_attention`. Two ways to compute the same:

    variable length   `torch.nn.attention.varlen` on CUDA in half precision: no padding, no mask
    by rows           elsewhere: sequences are laid into rows of one length for SDPA; under a causal mask the padding at
                      the end of a row is after every real token and so needs no mask. Sequences of unlike lengths go
                      into different calls, so that little of the work is padding.

Without these keywords (generation, evaluation of single rows) it is plain causal attention.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "kernelmill_packed"
_PADDING = 1.25
"""Longest over shortest sequence in one SDPA call."""


def register() -> str:
    """Makes the attention known to transformers (any number of times) and returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
    return NAME


def attention_kwargs(lengths: Sequence[int], cu_seqlens: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Keywords for the model's forward.

    lengths: tokens of every sequence in the row. cu_seqlens: int32 [sequences + 1] on the model's device. dtype: of the
    model's activations.
    """
    if cu_seqlens.is_cuda and dtype in (torch.bfloat16, torch.float16) and _varlen_arguments():
        return {"packed_cu": cu_seqlens, "packed_longest": max(lengths)}
    rows, back = _layout(lengths)
    device = cu_seqlens.device
    return {"packed_rows": [row.to(device) for row in rows], "packed_back": back.to(device)}


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_cu: Tensor | None = None,
    packed_longest: int = 0,
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
    if packed_cu is None and packed_rows is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None and query.shape[2] > 1,
            scale=scaling, enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        return out.transpose(1, 2), None
    if query.shape[0] != 1:
        raise ValueError(f"packed rows come one at a time, got {query.shape[0]}")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if packed_cu is not None:
        return _varlen(q, k, v, packed_cu, packed_longest, scaling)[None], None
    assert packed_rows is not None and packed_back is not None
    return _by_rows(q, k, v, packed_rows, packed_back, scaling)[None], None


def _layout(lengths: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """How sequences become rows of one length, those of similar length together.

    Returns one int64 [rows, longest] per SDPA call, which token stands where (token 0 as padding), and int64 [tokens],
    where each token is found in the calls' outputs behind each other.
    """
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    calls: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if calls and lengths[calls[-1][0]] <= _PADDING * lengths[i] + 16:
            calls[-1].append(i)
        else:
            calls.append([i])
    rows, back, done = [], torch.empty(starts[-1], dtype=torch.int64), 0
    for call in calls:
        longest = lengths[call[0]]
        index = torch.zeros((len(call), longest), dtype=torch.int64)
        for row, i in enumerate(call):
            index[row, : lengths[i]] = torch.arange(starts[i], starts[i + 1])
            at = done + row * longest
            back[starts[i] : starts[i + 1]] = torch.arange(at, at + lengths[i])
        rows.append(index)
        done += index.numel()
    return rows, back


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


def _varlen_arguments() -> set[str]:
    """Parameter names of torch's variable-length attention, which changed between versions; empty without it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return set()
    return set(inspect.signature(varlen_attn).parameters)


def _varlen(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, longest: int, scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    known = _varlen_arguments()
    keywords: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if scaling is not None:
        keywords["scale"] = scaling
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in known:
            keywords["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    out = varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), cu, cu, longest, longest, **keywords)
    assert isinstance(out, Tensor)  # only a request for the log-sum-exp makes it a pair
    return out
