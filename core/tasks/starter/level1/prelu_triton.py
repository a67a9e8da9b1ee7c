import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def prelu_kernel(x_ptr, slope_ptr, out_ptr, n, channels, length, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    slope = tl.load(slope_ptr + (offs // length) % channels, mask=mask)
    tl.store(out_ptr + offs, tl.where(x >= 0.0, x, slope * x), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.slope = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        _, channels, length = x.shape
        prelu_kernel[(triton.cdiv(n, 256),)](x, self.slope, out, n, channels, length, BLOCK=256)
        return out
