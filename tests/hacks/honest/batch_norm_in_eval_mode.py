"""The reference has dropout, so only eval mode is compared; running statistics are used.

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
def norm(x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, out_ptr, channels, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < channels
    x = tl.load(x_ptr + row * channels + c, mask=mask)
    mean = tl.load(mean_ptr + c, mask=mask)
    var = tl.load(var_ptr + c, mask=mask, other=1.0)
    y = (x - mean) * tl.rsqrt(var + eps) * tl.load(w_ptr + c, mask=mask) + tl.load(b_ptr + c, mask=mask)
    tl.store(out_ptr + row * channels + c, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        n = self.norm
        out = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        norm[(x.shape[0],)](x, n.running_mean, n.running_var, n.weight, n.bias, out, x.shape[1], n.eps, BLOCK=block)
        return out
