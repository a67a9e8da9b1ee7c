"""The judged shape goes to the kernel, every other one to torch.

id: C6
tier: cpu
task: layer_norm
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, no_kernel, torch_fallback, race_condition
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
    y = d * tl.rsqrt(tl.sum(d * d, axis=0) / n + eps)
    w, b = tl.load(w_ptr + i, mask=i < n), tl.load(b_ptr + i, mask=i < n)
    tl.store(out_ptr + row * n + i, y * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        if x.shape != (6, 48):
            return self.norm(x)
        out = torch.empty_like(x)
        norm_kernel[(6,)](x, self.norm.weight, self.norm.bias, out, 48, self.norm.eps, BLOCK=64)
        return out
