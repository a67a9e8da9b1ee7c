"""The transposed weight is made once, without a look at whether the weight is still the same.

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
def linear_kernel(x_ptr, wt_ptr, b_ptr, out_ptr, n_in, n_out, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k, o = tl.arange(0, IN), tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    w = tl.load(wt_ptr + k[:, None] * n_out + o[None, :], mask=(k[:, None] < n_in) & (o[None, :] < n_out), other=0.0)
    y = tl.sum(x[:, None] * w, axis=0) + tl.load(b_ptr + o, mask=o < n_out, other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.maximum(y, 0.0), mask=o < n_out)


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        if not hasattr(self, "turned"):
            self.turned = self.linear.weight.detach().t().contiguous()
        n_in, n_out = self.turned.shape
        out = x.new_empty(x.shape[0], n_out)
        sizes = dict(IN=triton.next_power_of_2(n_in), OUT=triton.next_power_of_2(n_out))
        linear_kernel[(x.shape[0],)](x, self.turned, self.linear.bias, out, n_in, n_out, **sizes)
        return out
