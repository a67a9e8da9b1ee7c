"""Asserts that tensors are on the GPU, asks for the device, moves to it.

tier: cpu
task: relu_scale
expect: pass
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
        assert x.is_cuda, "x must be on the GPU"
        x = x.contiguous().cuda()
        out = torch.empty(x.shape, dtype=x.dtype, device="cuda")
        with torch.cuda.device(0):
            kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128, num_warps=4, num_stages=2)
        torch.cuda.synchronize()
        return out
