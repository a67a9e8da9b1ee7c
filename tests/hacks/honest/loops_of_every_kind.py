"""tl.range, tl.static_range and a while loop in one kernel.

tier: cpu
task: row_sum
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    step = BLOCK * UNROLL
    whole = n // step * step
    for start in tl.range(0, whole, step):
        for part in tl.static_range(UNROLL):
            total += tl.load(x_ptr + row * n + start + part * BLOCK + tl.arange(0, BLOCK))
    start = whole
    while start < n:
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
        start += BLOCK
    tl.store(out_ptr + row, tl.sum(total, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=64, UNROLL=2)
        return out
