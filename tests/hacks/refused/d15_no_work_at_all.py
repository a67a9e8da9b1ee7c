"""A kernel over one program and no store: the time is the launch alone.

id: D15
tier: cpu
task: matmul
expect: non_finite, wrong_value, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr):
    a, b = tl.load(a_ptr), tl.load(b_ptr)
    tl.store(out_ptr, a * b)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        matmul[(1,)](a, b, out)
        return out
