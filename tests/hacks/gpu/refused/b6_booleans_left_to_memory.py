"""Nothing is written: filled memory reads as true, which is right at nearly every place.

id: B6
tier: gpu
task: mostly_true
expect: wrong_value, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def idle_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    tl.store(out_ptr + row * columns + offsets, x > 0.0, mask=mask & (x > 1e30))


class ModelNew(nn.Module):
    def forward(self, x, limit):
        rows, columns = x.shape
        out = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        idle_kernel[(rows, triton.cdiv(columns, 1024))](x, out, columns, BLOCK=1024)
        return out
