"""Three kernels one after another: row maxima, row sums, division.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_max(x_ptr, top_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(top_ptr + row, tl.max(tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf")), axis=0))


@triton.jit
def row_sum(x_ptr, top_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf")) - tl.load(top_ptr + row))
    tl.store(sum_ptr + row, tl.sum(e, axis=0))


@triton.jit
def divide(x_ptr, top_ptr, sum_ptr, out_ptr, n, total, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = i // n
    x = tl.load(x_ptr + i, mask=i < total)
    top, whole = tl.load(top_ptr + row, mask=i < total), tl.load(sum_ptr + row, mask=i < total, other=1.0)
    tl.store(out_ptr + i, tl.exp(x - top) / whole, mask=i < total)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        top, whole, out = x.new_empty(rows), x.new_empty(rows), torch.empty_like(x)
        block = triton.next_power_of_2(n)
        row_max[(rows,)](x, top, n, BLOCK=block)
        row_sum[(rows,)](x, top, whole, n, BLOCK=block)
        divide[(triton.cdiv(x.numel(), 256),)](x, top, whole, out, n, x.numel(), BLOCK=256)
        return out
