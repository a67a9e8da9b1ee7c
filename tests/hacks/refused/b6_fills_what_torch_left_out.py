"""torch computes everything and blanks one element, which the kernel puts back.

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
def put_back(from_ptr, to_ptr):
    tl.store(to_ptr, tl.load(from_ptr))


class ModelNew(nn.Module):
    def forward(self, x):
        done = torch.softmax(x, dim=1)
        out = done.clone()
        out[0, 0] = 0.0
        put_back[(1,)](done, out)
        return out
