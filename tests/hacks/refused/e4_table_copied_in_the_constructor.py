"""The constructor copies the initial bias; updates of the parameter never reach the kernel.

id: E4
tier: cpu
task: linear_relu
expect: wrong_value, torch_fallback, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_kernel(x_ptr, w_ptr, b_ptr, out_ptr, n_in, n_out, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, IN)
    o = tl.program_id(1) * OUT + tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    w = tl.load(w_ptr + o[:, None] * n_in + k[None, :], mask=(o[:, None] < n_out) & (k[None, :] < n_in), other=0.0)
    y = tl.sum(w * x[None, :], axis=1) + tl.load(b_ptr + o, mask=o < n_out, other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.maximum(y, 0.0), mask=o < n_out)


def linear_relu(x, weight, bias):
    n_out, n_in = weight.shape
    out = torch.empty((x.shape[0], n_out), dtype=x.dtype, device=x.device)
    grid = (x.shape[0], triton.cdiv(n_out, 64))
    linear_kernel[grid](x, weight, bias, out, n_in, n_out, IN=triton.next_power_of_2(n_in), OUT=64)
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.weight, self.bias = self.linear.weight.detach().clone(), self.linear.bias.detach().clone()

    def forward(self, x):
        return linear_relu(x, self.weight, self.bias)
