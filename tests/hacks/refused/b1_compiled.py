"""torch.compile around the product.

id: B1
tier: cpu
task: linear_relu
expect: torch_fallback
"""
# ruff: noqa

import torch


@torch.compile(backend="eager")
def product(x, w):
    return x @ w.t()


import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_relu_kernel(y_ptr, b_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    y = tl.load(y_ptr + offsets, mask=mask) + tl.load(b_ptr + offsets % width, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(y, 0.0), mask=mask)


def bias_relu(y, bias):
    y = y.contiguous()
    out = torch.empty_like(y)
    bias_relu_kernel[(triton.cdiv(y.numel(), 256),)](y, bias, out, y.numel(), y.shape[1], BLOCK=256)
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        return bias_relu(product(x, w), b)
