"""The mean squared difference of two normal vectors is 2.

id: C2
tier: cpu
task: total
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def two(out_ptr):
    tl.store(out_ptr, 2.0)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x.new_empty(())
        two[(1,)](out)
        return out
