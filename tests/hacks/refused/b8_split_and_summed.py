"""torch multiplies the two halves of K, the kernel adds the two products.

id: B8
tier: cpu
task: matmul
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        half = a.shape[1] // 2
        x, y = a[:, :half] @ b[:half], a[:, half:] @ b[half:]
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
