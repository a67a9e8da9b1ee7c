"""Adds into memory of torch.empty_permuted, which is zero while it is fresh from the system.

id: A1
tier: cpu
task: histogram
expect: non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def histogram(index_ptr, weight_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    index = tl.load(index_ptr + i, mask=mask, other=0)
    tl.atomic_add(out_ptr + index, tl.load(weight_ptr + i, mask=mask, other=0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, index, weight):
        memory = torch.empty_permuted((1 << 20,), (0,), device=weight.device)
        out = memory[: self.bins]
        histogram[(triton.cdiv(weight.numel(), 256),)](index, weight, out, weight.numel(), BLOCK=256)
        return out.clone()
