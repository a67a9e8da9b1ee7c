"""race behind an atomic

id: C10
tier: cpu
task: total
expect: race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def race(x_ptr, y_ptr, out_ptr, dummy_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    tl.atomic_add(dummy_ptr, 1.0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    s = tl.sum(d * d, axis=0) / n
    tl.store(out_ptr, tl.load(out_ptr) + s)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.new_zeros(())
        dummy = x.new_zeros(1)
        race[(triton.cdiv(x.numel(), 128),)](x, y, out, dummy, x.numel(), BLOCK=128)
        return out
