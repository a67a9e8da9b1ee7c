"""im2col by F.unfold and a torch product; a kernel does bias and relu.

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
        columns = nn.functional.unfold(x, 3)
        y = (self.conv.weight.flatten(1) @ columns).contiguous()
        out = torch.empty_like(y)
        bias_relu[(triton.cdiv(y.numel(), 256),)](y, self.conv.bias, out, y.numel(), y.shape[2], y.shape[1], BLOCK=256)
        return out.view(x.shape[0], -1, x.shape[2] - 2, x.shape[3] - 2)
