"""Atomics gather a row's sum, then every program divides by it in the same launch; the order of the grid hides it.

id: C10
tier: cpu
task: softmax
expect: race_condition, nondeterministic, wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def two_phases(x_ptr, sum_ptr, out_ptr, rows, n, BLOCK: tl.constexpr):
    phase, row = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    if phase == 0:
        tl.store(sum_ptr + row, tl.sum(e, axis=0))
    else:
        tl.store(out_ptr + row * n + i, e / tl.load(sum_ptr + row), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out, total = torch.empty_like(x), x.new_empty(x.shape[0])
        two_phases[(2, x.shape[0])](x, total, out, *x.shape, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
