"""Scale and shift of the batch norm are folded at the first eval call.

id: E4
tier: cpu
task: batch_norm
expect: wrong_value, torch_fallback, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x_ptr, w_ptr, b_ptr, out_ptr, channels, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < channels
    w, b = tl.load(w_ptr + c, mask=mask), tl.load(b_ptr + c, mask=mask)
    tl.store(out_ptr + row * channels + c, tl.load(x_ptr + row * channels + c, mask=mask) * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.folded = None

    def forward(self, x):
        if self.folded is None:
            w = (self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)).detach()
            self.folded = w, (self.norm.bias - self.norm.running_mean * w).detach()
        out = torch.empty_like(x)
        affine[(x.shape[0],)](x, *self.folded, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
