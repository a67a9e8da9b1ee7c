"""Launches over the whole grid with a mask that is never true; the answer is what memory held.

id: A1
tier: cpu
task: softmax
expect: non_finite, decoy_kernel, wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def nothing(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + i, tl.exp(x), mask=(i < n) & (i < 0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        nothing[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
