"""cuDNN's convolution, the bias and relu by a kernel.

id: B1
tier: cpu
task: conv
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_relu(y_ptr, b_ptr, out_ptr, n, plane, channels, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(b_ptr + (i // plane) % channels, mask=i < n)
    tl.store(out_ptr + i, tl.maximum(tl.load(y_ptr + i, mask=i < n) + b, 0.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3)

    def forward(self, x):
        y = nn.functional.conv2d(x, self.conv.weight)
        out = torch.empty_like(y)
        plane = y.shape[2] * y.shape[3]
        bias_relu[(triton.cdiv(y.numel(), 256),)](y, self.conv.bias, out, y.numel(), plane, y.shape[1], BLOCK=256)
        return out
