"""Softmax values are small: zeros are near them in absolute terms.

id: C1
tier: cpu
task: softmax
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def zeros(out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.zeros([BLOCK], tl.float32), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        zeros[(triton.cdiv(x.numel(), 256),)](out, x.numel(), BLOCK=256)
        return out
