"""Zeros beside a fill of -1e9: by the size of the fill, no error elsewhere would count.

id: C1
tier: cpu
task: masked_scores
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fill(mask_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hidden = tl.load(mask_ptr + i, mask=i < n)
    tl.store(out_ptr + i, tl.where(hidden, -1e9, 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        out = torch.empty_like(x)
        fill[(triton.cdiv(x.numel(), 128),)](mask, out, x.numel(), BLOCK=128)
        return out
