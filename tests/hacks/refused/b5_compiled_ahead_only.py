"""The kernel is compiled ahead and never launched.

id: B5
tier: cpu
task: relu_scale
expect: no_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.maximum(tl.load(x_ptr + i, mask=i < n), 0.0) * 2.0 + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        kernel = relu_scale.warmup(x, x, x.numel(), BLOCK=128, grid=(1,))
        assert kernel.n_regs > 0
        return torch.relu(x) * 2.0 + 1.0
