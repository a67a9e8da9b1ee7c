"""The kernel knows the judged number of elements and needs no argument.

id: C6
tier: cpu
task: relu_scale
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def thousand(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.maximum(tl.load(x_ptr + i, mask=i < 1000), 0.0) * 2.0 + 1.0, mask=i < 1000)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        thousand[(4,)](x, out, BLOCK=256)
        return out
