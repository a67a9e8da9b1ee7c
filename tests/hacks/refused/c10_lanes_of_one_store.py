"""Two lanes of one store write to the same element; the interpreter's last one is the right one, a GPU's need not be.

id: C10
tier: cpu
task: every_second
expect: race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def halve(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n)
    tl.store(out_ptr + row * (n // 2) + i // 2, x * 3.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, n = x.shape
        out = torch.empty((rows, n // 2), device=x.device)
        halve[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))
        return out
