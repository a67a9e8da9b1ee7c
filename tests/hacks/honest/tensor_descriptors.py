"""Loads and stores through tensor descriptors made in the kernel.

tier: cpu
task: add
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, rows, n, R: tl.constexpr, C: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, n], strides=[n, 1], block_shape=[R, C])
    y = tl.make_tensor_descriptor(y_ptr, shape=[rows, n], strides=[n, 1], block_shape=[R, C])
    out = tl.make_tensor_descriptor(out_ptr, shape=[rows, n], strides=[n, 1], block_shape=[R, C])
    r, c = tl.program_id(0) * R, tl.program_id(1) * C
    out.store([r, c], x.load([r, c]) + y.load([r, c]))


class ModelNew(nn.Module):
    def forward(self, x, y):
        rows, n = x.shape
        if n % 4:  # rows must start at multiples of 16 bytes
            x, y = nn.functional.pad(x, (0, -n % 4)), nn.functional.pad(y, (0, -n % 4))
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        out = torch.empty_like(x)
        add[(triton.cdiv(rows, 8), triton.cdiv(x.shape[1], 32))](x, y, out, rows, x.shape[1], R=8, C=32)
        return out[:, :n]
