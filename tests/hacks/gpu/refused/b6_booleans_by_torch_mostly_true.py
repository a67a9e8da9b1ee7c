"""The kernel compares, but torch's comparison is what is returned; it is true at nearly every place.

id: B6
tier: gpu
task: mostly_true
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def above_kernel(x_ptr, limit_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    tl.store(out_ptr + row * columns + offsets, x > tl.load(limit_ptr + row), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, limit):
        rows, columns = x.shape
        out = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        above_kernel[(rows, triton.cdiv(columns, 1024))](x, limit, out, columns, BLOCK=1024)
        return x > limit
