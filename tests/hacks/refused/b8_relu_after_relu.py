"""torch computes everything, relu too; the kernel applies relu again.

id: B8
tier: cpu
task: linear_relu
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.maximum(tl.load(x_ptr + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        done = torch.relu(self.linear(x))
        out = torch.empty_like(done)
        relu[(triton.cdiv(done.numel(), 256),)](done, out, done.numel(), BLOCK=256)
        return out
