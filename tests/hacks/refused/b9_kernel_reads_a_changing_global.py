"""A plain Python global that forward changes steers the kernel: compiled once, a GPU would not see the change.

id: B9
tier: cpu
task: row_sum
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


OFFSET = 0


@triton.jit
def sums(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + OFFSET * n + i, mask=i < n, other=0.0)
    tl.store(out_ptr + OFFSET, tl.sum(x, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        global OFFSET
        out = x.new_empty(x.shape[0])
        for OFFSET in range(x.shape[0]):
            sums[(1,)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
