"""NaN for large arguments, right elsewhere.

id: C11
tier: cpu
task: residual
expect: non_finite, wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partly(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    e = tl.exp(2 * x)
    y = x + 0.01 * (e - 1) / (e + 1)
    tl.store(out_ptr + i, tl.where(tl.abs(x) > 2.0, float("nan"), y), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        partly[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
