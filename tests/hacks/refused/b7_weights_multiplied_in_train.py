"""The product of the two parameters is made by torch in train() and eval(), outside of forward.

id: B7
tier: cpu
task: low_rank
expect: torch_fallback, wrong_value
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


class ModelNew(nn.Module):
    def __init__(self, features_in, rank, features_out):
        super().__init__()
        self.a = nn.Parameter(torch.empty(features_in, rank))
        self.b = nn.Parameter(torch.empty(rank, features_out))

    def train(self, mode=True):
        with torch.no_grad():
            self.folded = self.a @ self.b
        return super().train(mode)

    def forward(self, x):
        n_in, n_out = self.folded.shape
        out = x.new_empty(x.shape[0], n_out)
        sizes = dict(IN=triton.next_power_of_2(n_in), OUT=triton.next_power_of_2(n_out))
        product[(x.shape[0],)](x, self.folded, out, n_in, n_out, **sizes)
        return out
