"""Program i continues from what program i - 1 stored: an order that no GPU promises.

id: C10
tier: cpu
task: cumsum
expect: race_condition, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    before = tl.load(out_ptr + row * n + part * BLOCK - 1, mask=part > 0, other=0.0)
    tl.store(out_ptr + row * n + i, before + tl.cumsum(x, axis=0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        scan[(x.shape[0], triton.cdiv(x.shape[1], 32))](x, out, x.shape[1], BLOCK=32)
        return out
