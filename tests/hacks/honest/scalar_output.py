"""One number: partial sums by a kernel, their sum by a second kernel.

tier: cpu
task: total
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial(x_ptr, y_ptr, part_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(part_ptr + tl.program_id(0), tl.sum(d * d, axis=0))


@triton.jit
def finish(part_ptr, out_ptr, parts, n, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, parts, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(part_ptr + i, mask=i < parts, other=0.0), axis=0)
    tl.store(out_ptr, total / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        parts = triton.cdiv(x.numel(), 256)
        part = torch.empty(parts, device=x.device, dtype=torch.float32)
        out = torch.empty((), device=x.device, dtype=x.dtype)
        partial[(parts,)](x, y, part, x.numel(), BLOCK=256)
        finish[(1,)](part, out, parts, x.numel(), BLOCK=64)
        return out
