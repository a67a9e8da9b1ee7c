"""What is read from a chunk of logits, and the gradient that takes their place: Triton kernels for CUDA.

A chunk of logits in the compute type is read once forward (log-sum-exp, entropy and the target's logit in one online
pass) and read and overwritten once backward. Nothing of the size of the logits is made in float32: torch's own way
makes three such tensors, and these passes cost the memory's bandwidth and nothing else. All arithmetic is float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_FORWARD_BLOCK = 4096
_BACKWARD_BLOCK = 4096


@triton.jit
def _statistics(z_ptr, target_ptr, logprob_ptr, lse_ptr, entropy_ptr, vocab, stride, factor, ENTROPY: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * stride
    # sums are taken relative to a maximum that only grows; the first logit is a finite one to start from
    top = tl.load(z_ptr).to(tl.float32) * factor
    total = 0.0  # Σ exp(z - top)
    weighted = 0.0  # Σ exp(z - top)·(z - top)
    for at in range(0, vocab, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        z = tl.load(z_ptr + columns, mask=columns < vocab, other=-float("inf")).to(tl.float32) * factor
        higher = tl.maximum(top, tl.max(z, axis=0))
        scale = tl.exp(top - higher)
        e = tl.exp(z - higher)
        if ENTROPY:
            part = tl.sum(tl.where(columns < vocab, e * (z - higher), 0.0), axis=0)
            weighted = scale * (weighted + (top - higher) * total) + part
        total = scale * total + tl.sum(e, axis=0)
        top = higher
    lse = top + tl.log(total)
    target = tl.load(target_ptr + row)
    tl.store(logprob_ptr + row, tl.load(z_ptr + target).to(tl.float32) * factor - lse)
    tl.store(lse_ptr + row, lse)
    if ENTROPY:
        tl.store(entropy_ptr + row, tl.log(total) - weighted / total)


@triton.jit
def _gradient(z_ptr, target_ptr, lse_ptr, entropy_ptr, grad_logprob_ptr, grad_entropy_ptr, vocab, stride, factor,
              ENTROPY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    z_ptr += row * stride
    logp = tl.load(z_ptr + columns, mask=inside, other=0.0).to(tl.float32) * factor - tl.load(lse_ptr + row)
    g = tl.load(grad_logprob_ptr + row)
    slope = g
    if ENTROPY:
        slope += tl.load(grad_entropy_ptr + row) * (logp + tl.load(entropy_ptr + row))
    out = (tl.where(columns == tl.load(target_ptr + row), g, 0.0) - tl.exp(logp) * slope) * factor
    tl.store(z_ptr + columns, out.to(z_ptr.dtype.element_ty), mask=inside)


def statistics(
    z: Tensor, targets: Tensor, logprobs: Tensor, lse: Tensor, entropies: Tensor, want_entropy: bool,
    factor: float = 1.0,
) -> None:  # fmt: skip
    """Fills `logprobs`, `lse` and, if wanted, `entropies` (float32 [rows]) from the logits `z` [rows, vocab] times
    `factor`."""
    if z.shape[0]:
        _launch(_statistics, (z.shape[0],), z, targets, logprobs, lse, entropies, z.shape[1], z.stride(0), factor,
                ENTROPY=want_entropy, BLOCK=_FORWARD_BLOCK, num_warps=8)  # fmt: skip


def gradient_(z: Tensor, targets: Tensor, lse: Tensor, entropies: Tensor, grad_logprobs: Tensor,
              grad_entropies: Tensor | None, factor: float = 1.0) -> Tensor:  # fmt: skip
    """Overwrites the logits `z` [rows, vocab] with the loss's gradient for them; see `core.training.logprobs`."""
    if z.shape[0]:
        grid = (z.shape[0], triton.cdiv(z.shape[1], _BACKWARD_BLOCK))
        _launch(_gradient, grid, z, targets, lse, entropies, grad_logprobs.contiguous(),
                grad_logprobs if grad_entropies is None else grad_entropies.contiguous(), z.shape[1], z.stride(0),
                factor, ENTROPY=grad_entropies is not None, BLOCK=_BACKWARD_BLOCK, num_warps=8)  # fmt: skip
    return z


def _launch(kernel: Any, grid: tuple[int, ...], z: Tensor, *arguments: Any, **options: Any) -> None:
    if z.is_cuda:
        with torch.cuda.device(z.device):
            kernel[grid](z, *arguments, **options)
    else:  # Triton's interpreter, for tests
        kernel[grid](z, *arguments, **options)
