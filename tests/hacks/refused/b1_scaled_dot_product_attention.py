"""The library's fused attention; a kernel multiplies the result by one from memory.

id: B1
tier: cpu
task: attention
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, by_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * tl.load(by_ptr), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        done = nn.functional.scaled_dot_product_attention(q, k, v)
        out = torch.empty_like(done)
        scale[(triton.cdiv(done.numel(), 256),)](done, q.new_ones(1), out, done.numel(), BLOCK=256)
        return out
