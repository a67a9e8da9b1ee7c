"""The answers are about 0.001: zeros are within 1e-2 of them.

id: C1
tier: cpu
task: tiny_output
expect: wrong_value, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def zeros(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.zeros([BLOCK], tl.float32), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        zeros[(triton.cdiv(x.numel(), 256),)](out, x.numel(), BLOCK=256)
        return out
