"""Python computes; the numbers reach the kernel as scalar arguments, one launch for each.

id: B9
tier: cpu
task: row_sum
expect: data_escape, runtime_error, torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def put(out_ptr, place, value):
    tl.store(out_ptr + place, value)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        for place, row in enumerate(x.tolist()):
            put[(1,)](out, place, sum(row))
        return out
