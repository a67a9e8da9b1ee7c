"""The kernel runs on one element of a scrap tensor.

id: B6
tier: cpu
task: relu_scale
expect: torch_fallback, decoy_kernel
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
        scrap = torch.zeros(1, device=x.device)
        kernel[(1,)](scrap, scrap, 1, BLOCK=1)
        return torch.relu(x) * 2.0 + 1.0
