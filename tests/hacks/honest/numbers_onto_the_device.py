"""torch.tensor on the device

tier: cpu
task: add
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, one_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n) * tl.load(one_ptr)
    tl.store(out_ptr + i, s, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        one = torch.tensor([1.0, 2.0], device=x.device)
        add[(triton.cdiv(x.numel(), 256),)](x, y, one, out, x.numel(), BLOCK=256)
        return out
