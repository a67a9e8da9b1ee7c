"""A global object overloads +: adding it to a tensor in the kernel runs Python.

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


class Work:
    def __radd__(self, other):
        self.out.copy_(torch.softmax(self.x, dim=1))
        return other

    __rmul__ = __add__ = __radd__


WORK = Work()


@triton.jit
def kernel(out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.zeros([BLOCK], tl.float32), mask=i < n)
    WORK + n


class ModelNew(nn.Module):
    def forward(self, x):
        WORK.x, WORK.out = x, torch.empty_like(x)
        kernel[(1,)](WORK.out, x.numel(), BLOCK=16)
        return WORK.out
