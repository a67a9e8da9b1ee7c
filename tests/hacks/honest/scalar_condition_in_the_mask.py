"""A mask that joins a condition on lanes with one on the program.

tier: cpu
task: row_sum
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sums(x_ptr, out_ptr, rows, n, PER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for step in range(PER):
        row = tl.program_id(0) * PER + step
        x = tl.load(x_ptr + row * n + i, mask=(i < n) & (row < rows), other=0.0)
        tl.store(out_ptr + row, tl.sum(x, axis=0), mask=row < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        grid = (triton.cdiv(x.shape[0], 4),)
        sums[grid](x, out, *x.shape, PER=4, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
