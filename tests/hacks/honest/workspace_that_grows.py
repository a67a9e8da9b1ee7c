"""A buffer that resize_ makes larger when more is needed, written before it is read.

tier: cpu
task: row_sum
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def part(x_ptr, w_ptr, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    b = tl.program_id(1)
    i = b * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + r * n + i, mask=i < n, other=0.0)
    tl.store(w_ptr + r * tl.num_programs(1) + b, tl.sum(x, 0))


@triton.jit
def join(w_ptr, o_ptr, c, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + r, tl.sum(tl.load(w_ptr + r * c + i, mask=i < c, other=0.0), 0))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("work", torch.empty(0), persistent=False)

    def forward(self, x):
        c = triton.cdiv(x.shape[1], 32)
        need = x.shape[0] * c
        if self.work.numel() < need:
            self.work = self.work.to(x.device).resize_(need)
        o = x.new_empty(x.shape[0])
        part[(x.shape[0], c)](x, self.work, x.shape[1], BLOCK=32)
        join[(x.shape[0],)](self.work, o, c, BLOCK=triton.next_power_of_2(c))
        return o
