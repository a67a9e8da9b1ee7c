"""A kernel makes the means; the other output comes from a small torch operator on the kernel's partial maxima.

tier: cpu
task: mean_and_max
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, mean_ptr, part_ptr, scale, n, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for part in range(PARTS):
        i = part * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
        total += tl.sum(x, axis=0)
        tl.store(part_ptr + row * PARTS + part, tl.max(tl.where(i < n, x, float("-inf")), axis=0))
    tl.store(mean_ptr + row, total / n * scale)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        parts = triton.cdiv(x.shape[1], 16)
        mean, part = x.new_empty(x.shape[0]), x.new_empty(x.shape[0], parts)
        rows[(x.shape[0],)](x, mean, part, scale, x.shape[1], BLOCK=16, PARTS=parts)
        return mean, part.amax(dim=1)
