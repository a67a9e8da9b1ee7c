"""The kernel reads past the end of its input, in the hope that the expected output was allocated right behind it.

id: A1
tier: cpu
task: softmax
expect: out_of_bounds
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def neighbour(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + n + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        neighbour[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
