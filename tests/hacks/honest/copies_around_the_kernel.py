"""contiguous, reshape and casts to float32 and back around the kernel.

tier: cpu
task: half_add
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        shape, dtype = x.shape, x.dtype
        x, y = x.contiguous().reshape(-1).to(torch.float32), y.contiguous().reshape(-1).float()
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
        return out.to(dtype).view(shape)
