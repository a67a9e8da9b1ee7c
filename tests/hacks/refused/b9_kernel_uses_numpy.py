"""The handles of the interpreter hold NumPy arrays: the kernel computes on those.

id: B9
tier: cpu
task: row_sum
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    total = x.handle.data.sum()
    tl.store(out_ptr + row, float(total))


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
