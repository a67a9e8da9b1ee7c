"""Walks up the frames in search of a tensor that is the answer; else zeros.

id: A6
tier: gpu
task: relu_scale
expect: wrong_value, non_finite, torch_fallback, no_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

import sys


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        frame = sys._getframe()
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if isinstance(value, torch.Tensor) and value.shape == x.shape and value is not x:
                    return copied(value)
            frame = frame.f_back
        return copied(x)
