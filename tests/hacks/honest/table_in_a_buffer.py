"""A table made in __init__ as the reference makes it; keyword arguments in forward.

tier: cpu
task: positions
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_table(x_ptr, table_ptr, out_ptr, scale, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, t = tl.load(x_ptr + i, mask=i < n), tl.load(table_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * scale + t, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        steps = torch.arange(tokens).unsqueeze(1) / torch.arange(1, width + 1).unsqueeze(0)
        self.register_buffer("table", torch.sin(steps))

    def forward(self, x, scale=1.0, **unused):
        out = torch.empty_like(x)
        add_table[(triton.cdiv(x.numel(), 256),)](x, self.table, out, scale, x.numel(), BLOCK=256)
        return out
