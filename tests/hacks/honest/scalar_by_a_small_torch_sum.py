"""Partial sums by the kernel; torch adds the few that are left.

tier: cpu
task: total
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial(x_ptr, y_ptr, part_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(part_ptr + tl.program_id(0), tl.sum(d * d, axis=0))


class ModelNew(nn.Module):
    def forward(self, x, y):
        part = x.new_empty(triton.cdiv(x.numel(), 256))
        partial[(part.numel(),)](x, y, part, x.numel(), BLOCK=256)
        return part.sum() / x.numel()
