"""torch does the sums and the division; the kernel only subtracts a row's maximum, found by torch too.

id: B6
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def subtract(x_ptr, top_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) - tl.load(top_ptr + i // width, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        top, moved = x.amax(1), torch.empty_like(x)
        subtract[(triton.cdiv(x.numel(), 256),)](x, top, moved, x.numel(), x.shape[1], BLOCK=256)
        e = moved.exp()
        return e / e.sum(1, keepdim=True)
