"""Two programs may add to one bin with load and store.

id: C10
tier: cpu
task: histogram
expect: race_condition, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_to_bins(index_ptr, weight_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i, mask=i < n, other=-1)
    weight = tl.load(weight_ptr + i, mask=i < n, other=0.0)
    b = tl.arange(0, BINS)
    found = tl.sum(tl.where(index[:, None] == b[None, :], weight[:, None], 0.0), axis=0)
    tl.store(out_ptr + b, tl.load(out_ptr + b) + found)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, index, weight):
        out = torch.zeros(triton.next_power_of_2(self.bins), device=weight.device)
        grid = (triton.cdiv(index.numel(), 128),)
        add_to_bins[grid](index, weight, out, index.numel(), BLOCK=128, BINS=out.numel())
        return out[: self.bins].clone()
