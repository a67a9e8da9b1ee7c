"""A spin lock by compare-and-swap guards load, add and store of one accumulator.

tier: cpu
task: total
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_square(x_ptr, y_ptr, lock_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    part = tl.sum(d * d, axis=0) / n
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr, volatile=True) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out, lock = x.new_zeros(()), torch.zeros(1, dtype=torch.int32, device=x.device)
        mean_square[(triton.cdiv(x.numel(), 256),)](x, y, lock, out, x.numel(), BLOCK=256)
        return out
