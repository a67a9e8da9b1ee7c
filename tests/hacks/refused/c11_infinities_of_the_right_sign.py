"""Infinity is within any relative tolerance of itself, thinks the author.

id: C11
tier: cpu
task: residual
expect: non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def blown_up(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * float("inf"), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        blown_up[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
