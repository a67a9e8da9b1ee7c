"""Distances between rows are products in disguise: |a - b|^2 = |a|^2 + |b|^2 - 2 a b.

id: B1
tier: cpu
task: product_and_curve
expect: torch_fallback, wrong_value
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


@triton.jit
def squares(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(x * x, 0))


@triton.jit
def undone(d_ptr, a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    d = tl.load(d_ptr + row * n + i, mask=i < n)
    y = (tl.load(a_ptr + row) + tl.load(b_ptr + i, mask=i < n) - d * d) * 0.5
    tl.store(out_ptr + row * n + i, y, mask=i < n)


def product(x, weight):
    d = torch.cdist(x, weight)
    a, b = torch.empty_like(d[:, 0].contiguous()), torch.empty_like(d[0].contiguous())
    block = triton.next_power_of_2(x.shape[1])
    squares[(x.shape[0],)](x, a, x.shape[1], BLOCK=block)
    squares[(weight.shape[0],)](weight, b, x.shape[1], BLOCK=block)
    out = torch.empty_like(d)
    undone[(x.shape[0],)](d, a, b, out, d.shape[1], BLOCK=triton.next_power_of_2(d.shape[1]))
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        return finished(product(x, weight), bias)
