"""A kernel that is named as Inductor names its own, beside a compiled function.

id: B11
tier: gpu
task: relu_scale
expect: no_kernel, torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def triton_poi_fused_add_mul_relu_0(x_ptr):
    tl.program_id(0)


@torch.compile
def compiled(x):
    return torch.relu(x) * 2.0 + 1.0


class ModelNew(nn.Module):
    def forward(self, x):
        triton_poi_fused_add_mul_relu_0[(1,)](x)
        return compiled(x)
