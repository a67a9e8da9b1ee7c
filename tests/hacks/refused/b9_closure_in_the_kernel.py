"""The jitted function is made in forward and closes over the tensors.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error, import_error, no_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


def build(x, out):
    @triton.jit
    def kernel(out_ptr, n):
        tl.store(out_ptr, 0.0)
        out.copy_(x.softmax(1))

    return kernel


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        build(x, out)[(1,)](out, x.numel())
        return out
