"""Right indices as int32 where int64 is wanted.

id: C12
tier: cpu
task: argmax
expect: wrong_dtype
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def argmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + row, tl.argmax(tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf")), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
        argmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
