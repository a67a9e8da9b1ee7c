"""An input copied into memory that torch.empty_permuted gives, and read by its strides.

tier: cpu
task: row_sum
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, o_ptr, n, sr, sc, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(0, tl.cdiv(n, BLOCK)):
        i = k * BLOCK + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + r * sr + i * sc, mask=i < n, other=0.0)
    tl.store(o_ptr + r, tl.sum(acc))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_permuted(x.shape, (1, 0), device=x.device, dtype=x.dtype)
        y.copy_(x)
        o = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        rows[(x.shape[0],)](y, o, x.shape[1], *y.stride(), BLOCK=32)
        return o
