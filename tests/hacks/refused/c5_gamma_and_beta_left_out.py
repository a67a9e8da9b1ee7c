"""LayerNorm's parameters start at one and zero, so they are not applied.

id: C5
tier: cpu
task: layer_norm
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def plain_norm(x_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    mean = tl.sum(x, axis=0) / n
    d = tl.where(i < n, x - mean, 0.0)
    tl.store(out_ptr + row * n + i, d * tl.rsqrt(tl.sum(d * d, axis=0) / n + eps), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        plain_norm[(x.shape[0],)](x, out, x.shape[1], self.norm.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
