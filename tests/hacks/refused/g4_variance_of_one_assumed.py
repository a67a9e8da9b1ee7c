"""Inputs are standard normal, so LayerNorm only has to subtract the mean.

id: G4
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
def centre(x_ptr, w_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    w, b = tl.load(w_ptr + i, mask=i < n), tl.load(b_ptr + i, mask=i < n)
    tl.store(out_ptr + row * n + i, (x - tl.sum(x, axis=0) / n) * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        w, b = self.norm.weight, self.norm.bias
        centre[(x.shape[0],)](x, w, b, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
