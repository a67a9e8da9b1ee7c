"""The number of programs is that of the judged shape; the masks are right.

id: C6
tier: cpu
task: add
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
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
        out = torch.empty_like(x)
        add[(5,)](x, y, out, x.numel(), BLOCK=128)
        return out
