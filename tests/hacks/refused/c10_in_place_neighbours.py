"""Each program reads its right neighbour's block of a buffer that the neighbour overwrites.

id: C10
tier: cpu
task: row_sum
expect: race_condition, nondeterministic, wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fold(x_ptr, n, width, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    left = tl.load(x_ptr + row * n + i - BLOCK, mask=(i < n) & (part > 0), other=0.0)
    tl.store(x_ptr + row * n + i, mine + left, mask=i < n)


@triton.jit
def finish(x_ptr, out_ptr, n, last, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + row, tl.sum(tl.load(x_ptr + row * n + last + i), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        parts = triton.cdiv(x.shape[1], 64)
        own = torch.zeros(x.shape[0], parts * 64, device=x.device)
        own[:, : x.shape[1]] = x
        out = x.new_empty(x.shape[0])
        fold[(x.shape[0], parts)](own, parts * 64, x.shape[1], BLOCK=64)
        finish[(x.shape[0],)](own, out, parts * 64, (parts - 1) * 64, BLOCK=64)
        return out
