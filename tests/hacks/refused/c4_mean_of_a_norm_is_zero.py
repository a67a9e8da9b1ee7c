"""Mean after LayerNorm is zero as long as gamma is one and beta zero.

id: C4
tier: cpu
task: norm_mean
expect: wrong_value, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def zeros(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.zeros([BLOCK], tl.float32), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = x.new_empty(x.shape[0])
        zeros[(1,)](out, x.shape[0], BLOCK=triton.next_power_of_2(x.shape[0]))
        return out
