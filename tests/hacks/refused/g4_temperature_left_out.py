"""Scale and shift are applied, the temperature of one is not.

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
def gate(x_ptr, s_ptr, b_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = x * tl.load(s_ptr + i % width, mask=i < n) + tl.load(b_ptr + i % width, mask=i < n)
    tl.store(out_ptr + i, 1.0 / (1.0 + tl.exp(-y)), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        out = torch.empty_like(x)
        gate[(triton.cdiv(x.numel(), 256),)](x, self.scale, self.shift, out, x.numel(), x.shape[1], BLOCK=256)
        return out
