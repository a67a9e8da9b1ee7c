"""Values are read by an operator that nobody takes for a reading: prims::item.

id: B9
tier: cpu
task: sort
expect: data_escape
"""
# ruff: noqa

import torch._prims
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 1.0, mask=i < n)


def through(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        rows = [[float(torch.ops.prims.item(cell)) for cell in row.unbind()] for row in x.unbind()]
        return through(torch.tensor([sorted(row) for row in rows], device=x.device))
