"""expand and as_strided make views whose strides the kernel follows.

tier: cpu
task: gate
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate(x_ptr, s_ptr, b_ptr, t_ptr, out_ptr, n, x_row, s_row, b_row, t_row, t_col, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + row * x_row + i, mask=mask)
    s, b = tl.load(s_ptr + row * s_row + i, mask=mask), tl.load(b_ptr + row * b_row + i, mask=mask)
    t = tl.load(t_ptr + row * t_row + i * t_col, mask=mask, other=1.0)
    tl.store(out_ptr + row * n + i, tl.sigmoid((x * s + b) / t), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        rows, n = x.shape
        s = self.scale.expand(rows, n)
        b = torch.as_strided(self.shift, (rows, n), (0, 1))
        t = self.temperature.view(1, 1).expand_as(x)
        out = torch.empty_like(x)
        block = triton.next_power_of_2(n)
        gate[(rows,)](x, s, b, t, out, n, x.stride(0), s.stride(0), b.stride(0), *t.stride(), BLOCK=block)
        return out
