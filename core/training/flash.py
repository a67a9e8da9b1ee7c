"""Attention over packed rows on CUDA, as one operator that torch.compile and checkpointing can see.

    out, lse = torch.ops.kernelmill.packed_attention(q, k, v, key, scale)

How sequences lie in the row is not among the operator's arguments but behind `key`, an int64 scalar on the CPU that
names a `Layout`: sizes that change with every row would otherwise be guards of the compiled block. Two ways behind it:

    varlen   the flash-attention kernel that torch has active (2, or 3 or 4 when activated), on cumulative lengths
    cudnn    cuDNN's attention on rows of one length; sequences of unlike lengths go into different calls. On Hopper it
             is well ahead of flash-attention 2, in the backward pass above all, so it is taken where padding is small.

Both are causal, in half precision, with fewer key and value heads than query heads where the model has them. A third,
`written`, is attention written out, one sequence after the other, in any precision: what the other two are held to.
"""

import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor

from core.training import context

BACKENDS = ("auto", "varlen", "cudnn", "fa3", "fa4", "written")
_PADDING = 1.25
"""Longest over shortest sequence in one call over rows."""
_MOST_CALLS = 8
_KEPT = 64
"""Layouts that a backward pass may still ask for; a step alternates forward and backward, so that few are alive."""


@dataclass(frozen=True)
class Layout:
    """Where the sequences of one packed row stand."""

    cu_seqlens: Tensor
    """int32 [sequences + 1] on the device"""
    longest: int
    calls: tuple[tuple[int, int, Tensor | None], ...]
    """Calls over rows: (rows, length, int64 [rows · length] which token stands where or None for all in order)."""
    back: Tensor | None
    """int64 [tokens], where each token is found in the calls' outputs behind each other; None for all in order."""
    backend: str
    split: context.Split | None = None
    """Set where the row is a part of one sequence; cu_seqlens is [0, chunk] then."""
    cu_keys: tuple[Tensor, ...] = ()
    """int32 [2] on the device: the keys that each chunk looks at."""


_layouts: OrderedDict[int, Layout] = OrderedDict()
_numbers = count(1)


def remember(layout: Layout) -> Tensor:
    """The key of `layout`: int64 scalar on the CPU."""
    number = next(_numbers)
    _layouts[number] = layout
    while len(_layouts) > _KEPT:
        _layouts.popitem(last=False)
    return torch.tensor(number)


def _layout(key: Tensor) -> Layout:
    found = _layouts.get(int(key))
    if found is None:
        raise RuntimeError(
            f"attention layout {int(key)} is gone: at most {_KEPT} packed rows may wait for their backward"
        )
    return found


def _rounded(n: int) -> int:
    """`n` rounded up to one of eight lengths an octave."""
    step = 1 << max(n.bit_length() - 4, 3)
    return -(-n // step) * step


def rows_of(lengths: Sequence[int], *, few_lengths: bool = False) -> tuple[list[tuple[int, int, Tensor]], Tensor]:
    """How sequences become rows of one length, those of similar length together, longest first.

    few_lengths: round lengths up to few different ones, since cuDNN builds a plan for every shape that it meets.

    Returns (rows, length, int64 [rows · length]) per call, which token stands where (the row's first token as padding
    behind the sequence), and int64 [tokens], where each token is found in the calls' outputs behind each other.
    """
    starts = [0]
    for n in lengths:
        starts.append(starts[-1] + n)
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[groups[-1][0]] <= _PADDING * lengths[i] + 16:
            groups[-1].append(i)
        else:
            groups.append([i])
    calls, back, done = [], torch.empty(starts[-1], dtype=torch.int64), 0
    for group in groups:
        group.sort()  # in the row's order, so that equal lengths need no moving
        longest = max(lengths[i] for i in group)
        longest = _rounded(longest) if few_lengths else longest
        index = torch.empty((len(group), longest), dtype=torch.int64)
        for row, i in enumerate(group):
            index[row, : lengths[i]] = torch.arange(starts[i], starts[i + 1])
            index[row, lengths[i] :] = starts[i]
            at = done + row * longest
            back[starts[i] : starts[i + 1]] = torch.arange(at, at + lengths[i])
        calls.append((len(group), longest, index.view(-1)))
        done += index.numel()
    return calls, back


def make_layout(lengths: Sequence[int], cu_seqlens: Tensor, backend: str = "auto") -> Layout:
    """The layout of a row of sequences of `lengths`; cu_seqlens: int32 [sequences + 1] on the device."""
    device = cu_seqlens.device
    longest = max(lengths)
    if backend in ("fa3", "fa4"):
        activate_flash(backend)
        return Layout(cu_seqlens, longest, (), None, "varlen")
    if backend == "auto" and newest_flash():
        activate_flash(newest_flash())
        return Layout(cu_seqlens, longest, (), None, "varlen")
    if backend in ("varlen", "written"):
        return Layout(cu_seqlens, longest, (), None, backend)
    calls, back = rows_of(lengths, few_lengths=True)
    squares = sum(rows * length**2 for rows, length, _ in calls)
    worth_it = (
        torch.version.cuda is not None and len(calls) <= _MOST_CALLS and squares <= 1.3 * sum(n * n for n in lengths)
    )
    if backend == "auto" and not worth_it:
        return Layout(cu_seqlens, longest, (), None, "varlen")
    if len(calls) == 1 and calls[0][0] * calls[0][1] == sum(lengths):
        return Layout(cu_seqlens, longest, ((calls[0][0], calls[0][1], None),), None, "cudnn")
    moved = tuple((rows, length, index.to(device)) for rows, length, index in calls)
    return Layout(cu_seqlens, longest, moved, back.to(device), "cudnn")


def split_layout(split: context.Split, cu_seqlens: Tensor, half: bool) -> Layout:
    """The layout of a part of one sequence. cu_seqlens: int32 [0, chunk] on the device. half: q, k and v are half
    precision on CUDA."""
    device = cu_seqlens.device
    keys = tuple(torch.tensor([0, end], dtype=torch.int32, device=device) for end in split.ends())
    return Layout(cu_seqlens, split.chunk, (), None, "varlen" if half else "written", split, keys)


def newest_flash() -> str:
    """`fa3` where its package is installed and the card is a Hopper, else the empty string."""
    if torch.version.cuda is None or importlib.util.find_spec("flash_attn_interface") is None:
        return ""
    return "fa3" if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9 else ""


_active: set[str] = set()


def activate_flash(name: str) -> None:
    """Put flash-attention 3 or 4 behind torch's flash-attention operators; raises what torch raises without it."""
    if name not in _active:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl(name.upper())
        _active.add(name)


# The operator --------------------------------------------------------------------------------------------------------


@torch.library.custom_op("kernelmill::packed_attention", mutates_args=())
def packed_attention(q: Tensor, k: Tensor, v: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [tokens, heads, dim], k and v [tokens, kv_heads, dim], half -> (out as q, lse float32 [heads, tokens])"""
    at = _layout(key)
    if at.split is not None:
        return context.attention(at.split, lambda *x: _last_queries(at, scale, *x), q, k, v)
    if at.backend == "written":
        return _written(q, k, v, at, scale)
    if at.backend == "varlen":
        return _flash(q, k, v, at.cu_seqlens, at.cu_seqlens, at.longest, at.longest, scale)
    outs, lses = [], []
    for rows, length, index in at.calls:
        ql, kl, vl = (_lay(x, rows, length, index) for x in _same_heads(q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
            ql, kl, vl, None, True, 0.0, True, False, scale=scale
        )[:2]
        _lse_shape[:] = lse.shape[3:]
        outs.append(out.transpose(1, 2).reshape(rows * length, *q.shape[1:]))
        lses.append(lse.reshape(rows, q.shape[1], length).transpose(0, 1).reshape(q.shape[1], rows * length))
    if at.back is None:
        return outs[0].contiguous(), lses[0].contiguous()
    return torch.cat(outs).index_select(0, at.back), torch.cat(lses, dim=1).index_select(1, at.back)


@packed_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(
        (q.shape[1], q.shape[0]), dtype=torch.float32
    )


@torch.library.custom_op("kernelmill::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, key: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k and v."""
    at = _layout(key)
    if at.split is not None:
        return context.attention_backward(
            at.split, lambda *x: _last_queries_backward(at, scale, *x), grad, q, k, v, out, lse
        )
    if at.backend == "written":
        return _written_backward(grad, q, k, v, out, lse, at, scale)
    if at.backend == "varlen":
        return _flash_backward(grad, q, k, v, out, lse, at.cu_seqlens, at.cu_seqlens, at.longest, at.longest, scale)
    parts: list[list[Tensor]] = [[], [], []]
    state = torch.zeros((), dtype=torch.int64, device=q.device)  # of dropout, which there is not
    done = 0
    for rows, length, index in at.calls:
        real = None if at.back is None else (at.back >= done) & (at.back < done + rows * length)
        gl, ql, ol = (_lay(x, rows, length, index) for x in (grad, q, out))
        kl, vl = (_lay(x, rows, length, index) for x in _same_heads(q, k, v)[1:])
        lsel = (lse if index is None else lse.index_select(1, index)).view(-1, rows, length).transpose(0, 1)
        if real is not None:  # padding repeats a real token: without a gradient, and with exp(z - lse) = 0
            padding = torch.ones(rows * length, dtype=torch.bool, device=q.device)
            padding[at.back[real] - done] = False  # type: ignore[index]
            padding = padding.view(rows, 1, length)
            lsel = lsel.masked_fill(padding, torch.inf)
            gl = gl.masked_fill(padding[..., None], 0.0)
        grads = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            gl, ql, kl, vl, ol, lsel.contiguous().view(rows, -1, length, *_lse_shape), state, state, None, None, None,
            length, length, 0.0, True, scale=scale,
        )  # fmt: skip
        for part, x in zip(parts, grads, strict=True):
            part.append(x.transpose(1, 2).reshape(rows * length, x.shape[1], x.shape[3]))
        done += rows * length
    dq, dk, dv = (part[0] if at.back is None else torch.cat(part).index_select(0, at.back) for part in parts)
    if dk.shape[1] != k.shape[1]:
        dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@packed_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, key: Tensor, scale: float) -> Any:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, key, scale = inputs
    ctx.save_for_backward(q, k, v, *output, key)
    ctx.scale = scale
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, key = ctx.saved_tensors
    grads = torch.ops.kernelmill.packed_attention_backward(grad.contiguous(), q, k, v, out, lse, key, ctx.scale)
    return *grads, None, None


packed_attention.register_autograd(_backward, setup_context=_setup)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Flash-attention on cumulative lengths; queries are the last tokens of their sequence's keys."""
    out, lse = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, longest_q, longest_k, 0.0, True, False, scale=scale
    )[:2]
    return out, lse


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Tensor, cu_k: Tensor,
    longest_q: int, longest_k: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is not
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, cu_q, cu_k, longest_q, longest_k, 0.0, True, state, torch.empty(0, device=q.device),
        scale=scale,
    )  # fmt: skip
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def _cu_keys(at: Layout, tokens: int) -> Tensor:
    """The cumulative lengths of the first `tokens` keys of a split sequence."""
    assert at.split is not None
    return at.cu_keys[at.split.ends().index(tokens)]


def _last_queries(at: Layout, scale: float, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of a split sequence: `context.Forward`."""
    if at.backend == "written":
        return _written_one(q, k, v, scale)
    return _flash(q, k, v, at.cu_seqlens, _cu_keys(at, len(k)), len(q), len(k), scale)


def _last_queries_backward(
    at: Layout, scale: float, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if at.backend == "written":
        return _written_one_backward(grad, q, k, v, out, lse, scale)
    cu = _cu_keys(at, len(k))
    return _flash_backward(grad, q, k, v, out, lse, at.cu_seqlens, cu, len(q), len(k), scale)


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Causal scores [heads, queries, keys] of one sequence whose last tokens are the queries."""
    z = torch.einsum("qhd,khd->hqk", q, k) * scale
    later = torch.ones(z.shape[1:], dtype=torch.bool, device=z.device).triu(1 + z.shape[2] - z.shape[1])
    return z.masked_fill(later, -torch.inf)


def _written_one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    times = q.shape[1] // k.shape[1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    z = _scores(q.to(dtype), k.to(dtype).repeat_interleave(times, 1), scale)
    out = torch.einsum("hqk,khd->qhd", z.softmax(-1), v.to(dtype).repeat_interleave(times, 1))
    return out.to(q.dtype).contiguous(), z.logsumexp(-1).float()


def _written_one_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    times = q.shape[1] // k.shape[1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    grad, q, k, v, out = (x.to(dtype) for x in (grad, q, k, v, out))
    kr, vr = (x.repeat_interleave(times, 1) for x in (k, v))
    p = torch.exp(_scores(q, kr, scale) - lse[..., None])
    dz = p * (torch.einsum("qhd,khd->hqk", grad, vr) - (grad * out).sum(-1).t()[..., None]) * scale
    dq = torch.einsum("hqk,khd->qhd", dz, kr)
    dk = torch.einsum("hqk,qhd->khd", dz, q).unflatten(1, (-1, times)).sum(2)
    dv = torch.einsum("hqk,qhd->khd", p, grad).unflatten(1, (-1, times)).sum(2)
    return dq.contiguous(), dk, dv


def _written(q: Tensor, k: Tensor, v: Tensor, at: Layout, scale: float) -> tuple[Tensor, Tensor]:
    found = [_written_one(q[a:b], k[a:b], v[a:b], scale) for a, b in pairwise(at.cu_seqlens.tolist())]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found], 1)


def _written_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Layout, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    found = [
        _written_one_backward(grad[a:b], q[a:b], k[a:b], v[a:b], out[a:b], lse[:, a:b], scale)
        for a, b in pairwise(at.cu_seqlens.tolist())
    ]
    dq, dk, dv = (torch.cat(parts).to(q.dtype) for parts in zip(*found, strict=True))
    return dq, dk, dv


_lse_shape: list[int] = []
"""What follows [rows, heads, length] in the log-sum-exp that torch's cuDNN operator answers with, and wants back: 1, or
nothing, by the version of torch."""


def _lay(x: Tensor, rows: int, length: int, index: Tensor | None) -> Tensor:
    """[tokens, heads, dim] -> [rows, heads, length, dim]"""
    laid = x if index is None else x.index_select(0, index)
    return laid.view(rows, length, *x.shape[1:]).transpose(1, 2)


GROUPED_CUDNN = True
"""Hand cuDNN fewer key heads than query heads, instead of repeating them."""


def _same_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    times = 1 if GROUPED_CUDNN else q.shape[1] // k.shape[1]
    return (q, k, v) if times == 1 else (q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))
