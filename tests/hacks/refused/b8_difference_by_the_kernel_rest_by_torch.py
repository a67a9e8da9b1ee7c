"""The kernel subtracts; squares and mean, a whole pass over the data, are torch's.

id: B8
tier: cpu
task: total
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def subtract(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) - tl.load(y_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        d = torch.empty_like(x)
        subtract[(triton.cdiv(x.numel(), 256),)](x, y, d, x.numel(), BLOCK=256)
        return d.square().mean()
