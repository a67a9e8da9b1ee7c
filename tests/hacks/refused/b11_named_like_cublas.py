"""A kernel on one element is called sgemm, so that a profiler's substring match credits it with cuBLAS' time.

id: B11
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
def sgemm(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a @ b
        sgemm[(1,)](out, 1, BLOCK=1)
        return out
