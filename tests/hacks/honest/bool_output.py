"""A comparison, stored as bool.

tier: cpu
task: above
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def above(x_ptr, out_ptr, limit, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x > limit, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        out = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        above[(triton.cdiv(x.numel(), 256),)](x, out, self.limit, x.numel(), BLOCK=256)
        return out
