"""A kernel casts an integer to a pointer and reads wherever it likes.

id: A1
tier: cpu
task: softmax
expect: out_of_bounds, illegal_kernel, kernel_error, data_escape, wrong_value, runtime_error
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


@triton.jit
def anywhere(address, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = address.to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + i, tl.load(source + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        done = softmax(x)
        out = torch.empty_like(x)
        address = max(done.data_ptr(), 2**33)
        anywhere[(triton.cdiv(x.numel(), 256),)](address, out, x.numel(), BLOCK=256)
        return out
