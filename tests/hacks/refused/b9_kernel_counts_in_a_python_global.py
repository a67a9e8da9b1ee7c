"""Programs hand a running total from one to the next in a Python global.

id: B9
tier: cpu
task: total
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


carried = 0.0


@triton.jit
def mean_square(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    global carried
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    if tl.program_id(0) == 0:
        carried = 0.0
    carried = carried + tl.sum(d * d, axis=0)
    tl.store(out_ptr, carried / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.new_empty(())
        mean_square[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
        return out
