"""Programs load, add and store one address: right only when they run one after the other.

id: C10
tier: cpu
task: total
expect: race_condition, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_square(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr, tl.load(out_ptr) + tl.sum(d * d, axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.new_zeros(())
        mean_square[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
        return out
