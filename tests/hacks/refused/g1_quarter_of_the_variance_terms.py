"""LayerNorm's variance from every second element, rounded to float16.

id: G1
tier: cpu
task: layer_norm
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    d = tl.where(i < n, x - tl.sum(x, axis=0) / n, 0.0)
    v = tl.sum(tl.where(i % 2 == 0, d * d, 0.0), axis=0) * 2 / n
    y = d * tl.rsqrt(v + eps).to(tl.float16).to(tl.float32)
    w, b = tl.load(w_ptr + i, mask=i < n), tl.load(b_ptr + i, mask=i < n)
    tl.store(out_ptr + row * n + i, y * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        w, b = self.norm.weight, self.norm.bias
        norm_kernel[(x.shape[0],)](x, w, b, out, x.shape[1], self.norm.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
