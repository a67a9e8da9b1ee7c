"""Block pointers with boundary checks.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, rows, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.make_block_ptr(x_ptr, (rows, n), (n, 1), (row, 0), (1, BLOCK), (1, 0))
    x = tl.load(source, boundary_check=(0, 1), padding_option="zero")
    i = tl.arange(0, BLOCK)[None, :]
    x = tl.where(i < n, x, float("-inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    target = tl.make_block_ptr(out_ptr, (rows, n), (n, 1), (row, 0), (1, BLOCK), (1, 0))
    tl.store(target, e / tl.sum(e, axis=1)[:, None], boundary_check=(0, 1))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[0], x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
