"""torch sums each row, .item() brings it to the host, the kernel writes it.

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
        for place in range(x.shape[0]):
            put[(1,)](out, place, x[place].sum().item())
        return out
