"""The same over torch.zeros, so that nothing looks odd.

id: C8
tier: cpu
task: softmax
expect: wrong_value, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.zeros_like(x)
        softmax_kernel[(x.shape[0] - 1,)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
