"""A wrapper subclass has shape and dtype and no storage; it computes when an operator arrives.

id: D3
tier: cpu
task: softmax
expect: wrong_type, tampering, wrong_value, runtime_error
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


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)
        made.source = x
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [torch.softmax(a.source, 1) if isinstance(a, Wrapper) else a for a in args]
        return func(*args, **(kwargs or {}))


class ModelNew(nn.Module):
    def forward(self, x):
        softmax(x)
        return Wrapper(x.detach())
