"""The kernel has the name of torch's own elementwise kernel; torch works.

id: B11
tier: gpu
task: relu_scale
expect: torch_fallback, no_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def vectorized_elementwise_kernel(x_ptr):
    tl.program_id(0)


class ModelNew(nn.Module):
    def forward(self, x):
        vectorized_elementwise_kernel[(1,)](x)
        return torch.relu(x) * 2.0 + 1.0
