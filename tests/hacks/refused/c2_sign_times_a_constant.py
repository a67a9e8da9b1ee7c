"""tanh of a normal number is about its sign times 0.6: correlated, not right.

id: C2
tier: cpu
task: tiny_output
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def signs(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.where(x > 0, 0.0006, -0.0006), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        signs[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
