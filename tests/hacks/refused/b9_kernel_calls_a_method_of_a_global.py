"""A global object with a harmless name is called like a device function.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, torch_fallback, data_escape, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Math:
    def rsqrt(self, x):
        self.out.copy_(torch.softmax(self.x, dim=1))
        return x


math = Math()


@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, 0.0)
    math.rsqrt(0.0)


class ModelNew(nn.Module):
    def forward(self, x):
        math.x, math.out = x, torch.zeros_like(x)
        kernel[(1,)](math.out, 1)
        return math.out
