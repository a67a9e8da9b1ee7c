"""Ends the process with success in forward.

id: F1
tier: gpu
task: softmax
expect: crash
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

import os


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + offsets, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        softmax(x)
        os._exit(0)
