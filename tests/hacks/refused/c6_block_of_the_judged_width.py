"""A block of 128 columns holds the judged row of 100; wider rows are cut without a word.

id: C6
tier: cpu
task: softmax
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, n):
    row = tl.program_id(0)
    i = tl.arange(0, 128)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[1])
        return out
