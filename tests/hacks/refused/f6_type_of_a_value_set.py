"""a value whose type is set: stores beyond its tensor

id: F6
tier: cpu
task: add
expect: illegal_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def retype(v, t):
    v.type = t
    v.dtype = tl.int8
    return v


@triton.jit
def k(x_ptr, y_ptr, out_ptr, small_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, v, mask=i < n)
    j = tl.arange(0, 16)
    wide = j.to(tl.int64) + 4702394921427289928
    wide = retype(wide, (j.to(tl.int8)).type)
    tl.store(small_ptr + j, wide)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        small = torch.empty(16, dtype=torch.int8, device=x.device)
        k[(triton.cdiv(x.numel(), 256),)](x, y, out, small, x.numel(), BLOCK=256)
        return out
