"""Device functions that call each other and return tuples; constexpr globals.

tier: cpu
task: layer_norm
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


EPSILON_KIND: tl.constexpr = tl.constexpr("inside")


@triton.jit
def row_sum(x):
    return tl.sum(x, axis=0)


@triton.jit
def moments(x, mask, n):
    mean = row_sum(x) / n
    centred = tl.where(mask, x - mean, 0.0)
    return mean, row_sum(centred * centred) / n


@triton.jit
def norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(x_ptr + row * n + i, mask=mask, other=0.0)
    mean, var = moments(x, mask, n)
    if EPSILON_KIND == "inside":
        scale = 1 / tl.sqrt(var + eps)
    else:
        scale = 1 / (tl.sqrt(var) + eps)
    w, b = tl.load(w_ptr + i, mask=mask), tl.load(b_ptr + i, mask=mask)
    tl.store(out_ptr + row * n + i, (x - mean) * scale * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        w, b = self.norm.weight, self.norm.bias
        norm_kernel[(x.shape[0],)](x, w, b, out, x.shape[1], self.norm.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
