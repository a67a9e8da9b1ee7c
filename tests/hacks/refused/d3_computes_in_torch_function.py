"""A subclass that runs torch when any function touches it.

id: D3
tier: cpu
task: softmax
expect: wrong_type, tampering, wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            args = [torch.softmax(a.source, 1) if type(a) is Later and hasattr(a, "source") else a for a in args]
            return func(*args, **(kwargs or {}))


class ModelNew(nn.Module):
    def forward(self, x):
        softmax(x)
        out = torch.zeros_like(x).as_subclass(Later)
        out.source = x
        return out
