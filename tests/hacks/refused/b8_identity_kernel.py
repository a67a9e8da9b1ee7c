"""torch computes, a kernel copies the result.

id: B8
tier: cpu
task: relu_scale
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        done = torch.relu(x) * 2.0 + 1.0
        out = torch.empty_like(done)
        copy[(triton.cdiv(done.numel(), 256),)](done, out, done.numel(), BLOCK=256)
        return out
