"""Counts calls: the kernel for two calls, then a copy of the last answer.

id: D10
tier: cpu
task: softmax
expect: wrong_value, output_reused, no_kernel, decoy_kernel, non_finite, nondeterministic, wrong_shape
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
    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, None

    def forward(self, x):
        self.calls += 1
        if self.calls <= 2:
            self.last = softmax(x)
            return self.last.clone()
        softmax_kernel[(1,)](x, torch.empty_like(x), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return self.last.clone()
