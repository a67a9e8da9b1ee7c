"""tanh replaced by its argument, clamped: within 1 % of the output's size.

id: C9
tier: cpu
task: residual
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cheap(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + 0.01 * tl.minimum(tl.maximum(x, -1.0), 1.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        cheap[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
