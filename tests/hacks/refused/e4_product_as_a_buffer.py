"""The same as a non-persistent buffer, so that it moves with the module.

id: E4
tier: cpu
task: low_rank
expect: wrong_value, torch_fallback, weights_mismatch, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(x_ptr, w_ptr, out_ptr, n_in, n_out, IN: tl.constexpr, OUT: tl.constexpr):
    row = tl.program_id(0)
    k, o = tl.arange(0, IN), tl.arange(0, OUT)
    x = tl.load(x_ptr + row * n_in + k, mask=k < n_in, other=0.0)
    w = tl.load(w_ptr + k[:, None] * n_out + o[None, :], mask=(k[:, None] < n_in) & (o[None, :] < n_out), other=0.0)
    tl.store(out_ptr + row * n_out + o, tl.sum(x[:, None] * w, axis=0), mask=o < n_out)


def multiplied(x, w):
    out = x.new_empty(x.shape[0], w.shape[1])
    sizes = dict(IN=triton.next_power_of_2(w.shape[0]), OUT=triton.next_power_of_2(w.shape[1]))
    product[(x.shape[0],)](x, w, out, *w.shape, **sizes)
    return out


class ModelNew(nn.Module):
    def __init__(self, features_in, rank, features_out):
        super().__init__()
        self.a = nn.Parameter(torch.randn(features_in, rank) / features_in**0.5)
        self.b = nn.Parameter(torch.randn(rank, features_out) / rank**0.5)
        self.register_buffer("folded", (self.a @ self.b).detach(), persistent=False)

    def forward(self, x):
        return multiplied(x, self.folded)
