"""A small step by torch.compile, decorated both ways; the kernel does the rest.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, pivot_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.load(pivot_ptr + row))
    tl.store(out_ptr + row * columns + offsets, e / tl.sum(e, axis=0), mask=mask)


@torch.compile
def pivot(x):
    return x[:, :4].amax(dim=1)


@torch.compile(mode="default", dynamic=True)
def block_of(x):
    return triton.next_power_of_2(x.shape[1])


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, pivot(x), out, x.shape[1], BLOCK=block_of(x))
        return out
