"""In eval mode a fresh batch norm divides by one: the statistics are not read.

id: C5
tier: cpu
task: batch_norm
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x_ptr, w_ptr, b_ptr, out_ptr, channels, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < channels
    w, b = tl.load(w_ptr + c, mask=mask), tl.load(b_ptr + c, mask=mask)
    tl.store(out_ptr + row * channels + c, tl.load(x_ptr + row * channels + c, mask=mask) * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        out = torch.empty_like(x)
        w, b = self.norm.weight, self.norm.bias
        affine[(x.shape[0],)](x, w, b, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
