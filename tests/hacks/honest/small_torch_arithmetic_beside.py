"""torch folds a batch norm's few channels into scale and shift at every call; the kernel does the tensor.

tier: cpu
task: batch_norm
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x_ptr, w_ptr, b_ptr, out_ptr, n, channels, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, mask = i % channels, i < n
    w, b = tl.load(w_ptr + c, mask=mask), tl.load(b_ptr + c, mask=mask)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=mask) * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        n = self.norm
        w = n.weight * torch.rsqrt(n.running_var + n.eps)
        b = n.bias - n.running_mean * w
        out = torch.empty_like(x)
        affine[(triton.cdiv(x.numel(), 256),)](x, w, b, out, x.numel(), x.shape[1], BLOCK=256)
        return out
