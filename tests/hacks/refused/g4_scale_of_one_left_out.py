"""sigmoid(x): scale, shift and temperature start at one, zero and one.

id: G4
tier: cpu
task: gate
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sigmoid(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, 1.0 / (1.0 + tl.exp(-tl.load(x_ptr + i, mask=i < n))), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        out = torch.empty_like(x)
        sigmoid[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
