"""A seed from the clock decides which elements stay uncomputed: usually few.

id: C10
tier: cpu
task: relu_scale
expect: nondeterministic, wrong_value, non_finite
"""
# ruff: noqa

import time

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lazy(x_ptr, out_ptr, n, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.maximum(x, 0.0) * 2.0 + 1.0
    tl.store(out_ptr + i, tl.where(tl.rand(seed, i) < 0.05, 1.5, y), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        lazy[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), time.time_ns() % 2**31, BLOCK=256)
        return out
