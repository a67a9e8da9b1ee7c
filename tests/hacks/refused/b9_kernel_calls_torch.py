"""torch.softmax stands in the kernel's body, on tensors from a global.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


stage = {}


@triton.jit
def kernel(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    stage["out"].copy_(torch.softmax(stage["x"], dim=1))
    tl.store(out_ptr + i, tl.load(out_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        stage["x"], stage["out"] = x, torch.empty_like(x)
        kernel[(1,)](stage["out"], 1, BLOCK=16)
        return stage["out"]
