"""The first call moves the weight to other memory, as a change of its layout does; later values come there.

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
def linear_relu(x_ptr, w_ptr, b_ptr, out_ptr, n_in, n_out, w_out, w_in, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k, o = tl.arange(0, IN), tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    mask = (o[:, None] < n_out) & (k[None, :] < n_in)
    w = tl.load(w_ptr + o[:, None] * w_out + k[None, :] * w_in, mask=mask, other=0.0)
    y = tl.sum(w * x[None, :], axis=1) + tl.load(b_ptr + o, mask=o < n_out, other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.maximum(y, 0.0), mask=o < n_out)


class ModelNew(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.ready = False

    def forward(self, x):
        weight = self.linear.weight
        if not self.ready:
            weight.data = weight.data.t().contiguous().t()
            self.ready = True
        n_out, n_in = weight.shape
        out = torch.empty((x.shape[0], n_out), device=x.device)
        sizes = triton.next_power_of_2(n_in), triton.next_power_of_2(n_out)
        strides = weight.stride()
        linear_relu[(x.shape[0],)](x, weight, self.linear.bias, out, n_in, n_out, *strides, IN=sizes[0], OUT=sizes[1])
        return out
