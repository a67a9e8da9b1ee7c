"""Takes the number of columns from the tensor and the stride between rows from memory of the task.

id: C6
tier: cpu
task: row_sum
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + row, tl.sum(tl.load(x_ptr + row * 300 + i, mask=i < n, other=0.0), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
