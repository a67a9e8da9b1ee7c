"""Compile-time locals, annotated as such, are shapes: halves of a block, a size from a constexpr function.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.constexpr_function
def power_of_two_from(n):
    size = 16
    while size < n:
        size *= 2
    return size


@triton.jit
def softmax(x_ptr, out_ptr, N: tl.constexpr):
    WHOLE: tl.constexpr = power_of_two_from(N)
    HALF: tl.constexpr = WHOLE // 2
    SHAPE: tl.constexpr = (2, HALF)
    row = tl.program_id(0) * N
    i = tl.arange(0, 2)[:, None] * HALF + tl.arange(0, HALF)[None, :]
    tl.static_assert(HALF * 2 == WHOLE)
    x = tl.load(x_ptr + row + i, mask=i < N, other=-float("inf"))
    most = tl.max(tl.max(x, axis=1), axis=0)
    e = tl.exp(x - most) + tl.zeros(SHAPE, tl.float32)
    tl.store(out_ptr + row + i, e / tl.sum(tl.sum(e, axis=1), axis=0), mask=i < N)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, N=x.shape[1])
        return out
