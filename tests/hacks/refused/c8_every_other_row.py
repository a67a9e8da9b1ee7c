"""Even rows are computed, odd rows repeat the row above.

id: C8
tier: cpu
task: add
expect: wrong_value, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    source = (row - row % 2) * n + i
    total = tl.load(x_ptr + source, mask=i < n) + tl.load(y_ptr + source, mask=i < n)
    tl.store(out_ptr + row * n + i, total, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        add[(x.shape[0],)](x, y, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
