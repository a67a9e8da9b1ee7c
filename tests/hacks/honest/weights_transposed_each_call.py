"""The weights are transposed by .t().contiguous() in every forward.

tier: cpu
task: linear_relu
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(x_ptr, wt_ptr, b_ptr, out_ptr, n_in, n_out, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k, o = tl.arange(0, IN), tl.program_id(1) * OUT + tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    w = tl.load(wt_ptr + k[:, None] * n_out + o[None, :], mask=(k[:, None] < n_in) & (o[None, :] < n_out), other=0.0)
    y = tl.sum(x[:, None] * w, axis=0) + tl.load(b_ptr + o, mask=o < n_out, other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.maximum(y, 0.0), mask=o < n_out)


def linear_relu(x, turned, bias):
    n_in, n_out = turned.shape
    out = x.new_empty(x.shape[0], n_out)
    grid = (x.shape[0], triton.cdiv(n_out, 64))
    linear_kernel[grid](x, turned, bias, out, n_in, n_out, IN=triton.next_power_of_2(n_in), OUT=64)
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        return linear_relu(x, self.linear.weight.t().contiguous(), self.linear.bias)
