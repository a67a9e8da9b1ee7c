"""The sum stops at the last full block of a row.

id: C8
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
def sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, n - BLOCK + 1, BLOCK):
        total += tl.sum(tl.load(x_ptr + row * n + start + tl.arange(0, BLOCK)), axis=0)
    tl.store(out_ptr + row, total)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        sums[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
        return out
