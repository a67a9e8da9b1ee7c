"""A list of one product, and an operator of torch's own that few know.

id: B1
tier: cpu
task: product_and_curve
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def curve(y_ptr, bias_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(y_ptr + i, mask=i < n) + tl.load(bias_ptr + i % width, mask=i < n)
    tanh = 2 / (1 + tl.exp(-2 * y)) - 1
    tl.store(out_ptr + i, y / (1 + tl.exp(-1.702 * y)) + 0.5 * tanh, mask=i < n)


def finished(y, bias):
    y = y.contiguous()
    out = torch.empty_like(y)
    curve[(triton.cdiv(y.numel(), 256),)](y, bias, out, y.numel(), y.shape[1], BLOCK=256)
    return out


def product(x, weight):
    return torch.ops.aten._compute_linear_combination(weight.t(), x)


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        return finished(product(x, weight), bias)
