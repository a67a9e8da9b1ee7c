"""Kernels in a dictionary, launched through functools.partial and a helper.

tier: cpu
task: add
expect: pass
"""
# ruff: noqa

import functools

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(y_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def subtract_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) - tl.load(y_ptr + i, mask=i < n), mask=i < n)


KERNELS = {"add": add_kernel, "sub": subtract_kernel}


def binary(name, x, y, block=256):
    out = torch.empty_like(x)
    KERNELS[name][(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out


add = functools.partial(binary, "add", block=128)


class ModelNew(nn.Module):
    def forward(self, x, y):
        return add(x, y)
