"""Asserts on device.type and dtype, x.device handed to factories, a device guard.

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
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        assert x.is_cuda and y.is_cuda
        assert x.device.type == "cuda", f"expected a CUDA tensor, got {x.device}"
        assert x.device == y.device and x.dtype == y.dtype == torch.float32
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        with torch.cuda.device(x.device):
            add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
