"""The kernel fails on purpose and torch is the fallback.

id: B2
tier: cpu
task: relu_scale
expect: torch_fallback, no_kernel, kernel_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            kernel[(1,)](x, None, x.numel(), BLOCK=255)
            raise RuntimeError
        except Exception:
            return torch.relu(x) * 2.0 + 1.0
