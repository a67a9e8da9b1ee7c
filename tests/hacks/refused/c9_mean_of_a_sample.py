"""Every second element stands for its neighbour in a mean.

id: C9
tier: cpu
task: total
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def half(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * 2
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(d * d, axis=0) * 2 / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.new_zeros(())
        half[(triton.cdiv(x.numel() // 2, 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
