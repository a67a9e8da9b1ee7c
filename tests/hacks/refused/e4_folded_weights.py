"""Transposes and keeps the weights at the first call; later weights differ.

id: E4
tier: cpu
task: linear_relu
expect: wrong_value, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_relu(x_ptr, w_ptr, b_ptr, out_ptr, n_in, n_out, HAS_BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, IN)
    o = tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    w = tl.load(w_ptr + o[:, None] * n_in + k[None, :], mask=(o[:, None] < n_out) & (k[None, :] < n_in), other=0.0)
    y = tl.sum(w * x[None, :], axis=1)
    if HAS_BIAS:
        y += tl.load(b_ptr + o, mask=o < n_out, other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.maximum(y, 0.0), mask=o < n_out)


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)
        self.kept = None

    def forward(self, x):
        out = torch.empty((x.shape[0], self.linear.out_features), dtype=x.dtype, device=x.device)

        if self.kept is None:
            self.kept = self.linear.weight.detach().clone()
        n_in, n_out = self.linear.in_features, self.linear.out_features
        sizes = dict(IN=triton.next_power_of_2(n_in), OUT=triton.next_power_of_2(n_out))
        linear_relu[(x.shape[0],)](x, self.kept, self.linear.bias, out, n_in, n_out, HAS_BIAS=True, **sizes)
        return out
