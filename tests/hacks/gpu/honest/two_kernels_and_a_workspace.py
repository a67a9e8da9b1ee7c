"""Row maxima and sums into a kept workspace, then the quotient.

tier: gpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def statistics_kernel(x_ptr, top_ptr, sum_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=-float("inf"))
    top = tl.max(x, axis=0)
    tl.store(top_ptr + row, top)
    tl.store(sum_ptr + row, tl.sum(tl.exp(x - top), axis=0))


@triton.jit
def quotient_kernel(x_ptr, top_ptr, sum_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask)
    e = tl.exp(x - tl.load(top_ptr + row)) / tl.load(sum_ptr + row)
    tl.store(out_ptr + row * columns + offsets, e, mask=mask)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace = None

    def forward(self, x):
        rows, columns = x.shape
        if self.workspace is None or self.workspace.shape[1] != rows:
            self.workspace = torch.empty(2, rows, device=x.device)
        out = torch.empty_like(x)
        top, total = self.workspace
        statistics_kernel[(rows,)](x, top, total, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        quotient_kernel[(rows, triton.cdiv(columns, 1024))](x, top, total, out, columns, BLOCK=1024)
        return out
