"""One row is computed and repeated: all rows look alike on average.

id: C3
tier: cpu
task: row_sum
expect: wrong_value, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def first_row(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0), axis=0)
    tl.store(out_ptr + tl.program_id(0), total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        first_row[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
