"""A marker written by the kernel selects between torch's answer and NaN.

id: B6
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mark(flag_ptr):
    tl.store(flag_ptr, 1.0)


class ModelNew(nn.Module):
    def forward(self, x):
        flag = torch.full((1, 1), float("nan"), device=x.device)
        mark[(1,)](flag)
        return torch.softmax(x, dim=1) * flag
