"""A kernel that does nothing, and torch.

id: B6
tier: gpu
task: softmax
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def nothing_kernel(x_ptr):
    tl.program_id(0)


class ModelNew(nn.Module):
    def forward(self, x):
        nothing_kernel[(1,)](x)
        return torch.softmax(x, dim=1)
