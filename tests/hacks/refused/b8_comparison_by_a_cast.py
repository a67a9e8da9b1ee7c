"""x > limit as a cast to bool of a clamp: the comparison is torch's.

id: B8
tier: cpu
task: above
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_bytes(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) != 0, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        found = (x - self.limit).clamp_(min=0).to(torch.bool)
        out = torch.empty_like(found)
        copy_bytes[(triton.cdiv(x.numel(), 256),)](found, out, x.numel(), BLOCK=256)
        return out
