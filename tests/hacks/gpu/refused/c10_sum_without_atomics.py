"""All programs add into one place without atomics.

id: C10
tier: gpu
task: row_sum
expect: wrong_value, nondeterministic, non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * columns + offsets, mask=offsets < columns, other=0.0)
    tl.store(out_ptr + row, tl.load(out_ptr + row) + tl.sum(x, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros(x.shape[0], device=x.device)
        sum_kernel[(x.shape[0], triton.cdiv(x.shape[1], 256))](x, out, x.shape[1], BLOCK=256)
        return out
