"""One parameter is read with .item() to choose the kernel's variant.

tier: cpu
task: gate
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate(x_ptr, s_ptr, b_ptr, out_ptr, n, width, by, DIVIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    y = tl.load(x_ptr + i, mask=mask) * tl.load(s_ptr + i % width, mask=mask) + tl.load(b_ptr + i % width, mask=mask)
    if DIVIDE:
        y = y / by
    tl.store(out_ptr + i, 1.0 / (1.0 + tl.exp(-y)), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        by = self.temperature.item()
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 128),)
        gate[grid](x, self.scale, self.shift, out, x.numel(), x.shape[1], by, DIVIDE=by != 1.0, BLOCK=128)
        return out
