"""The mean of normal numbers is about 0 and the largest of so many is known by theory.

id: C2
tier: cpu
task: mean_and_max
expect: wrong_value
"""
# ruff: noqa

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def guess(mean_ptr, top_ptr, top, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(mean_ptr + i, tl.zeros([BLOCK], tl.float32), mask=i < n)
    tl.store(top_ptr + i, tl.zeros([BLOCK], tl.float32) + top, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        mean, top = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        guess[(1,)](mean, top, (2 * math.log(x.shape[1])) ** 0.5, x.shape[0], BLOCK=triton.next_power_of_2(x.shape[0]))
        return mean, top
