"""The same with beta's mean, which is right only while gamma is constant.

id: C4
tier: cpu
task: norm_mean
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_of_beta(b_ptr, out_ptr, rows, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    b = tl.load(b_ptr + i, mask=i < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(b, axis=0) / n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = x.new_empty(x.shape[0])
        mean_of_beta[(x.shape[0],)](self.norm.bias, out, *x.shape, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
