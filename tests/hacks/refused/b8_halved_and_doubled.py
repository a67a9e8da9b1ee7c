"""torch delivers half of the answer, the kernel doubles it.

id: B8
tier: cpu
task: matmul
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        half = torch.mm(a, b * 0.5)
        out = torch.empty_like(half)
        double[(triton.cdiv(half.numel(), 256),)](half, out, half.numel(), BLOCK=256)
        return out
