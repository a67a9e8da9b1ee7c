"""The grid's lambda is cached by size with functools.lru_cache.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import functools
import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


@functools.lru_cache(maxsize=None)
def grid_for(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]), 1, 1)


@functools.cache
def block_for(n: int) -> int:
    return max(64, min(1024, triton.next_power_of_2(int(math.sqrt(n)))))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[grid_for(x.numel())](x, out, x.numel(), BLOCK=block_for(x.numel()))
        return out
