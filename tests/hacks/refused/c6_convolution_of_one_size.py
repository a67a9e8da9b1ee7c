"""Strides and planes of the judged convolution are written into the kernel.

id: C6
tier: cpu
task: conv
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv(x_ptr, w_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    batch, o = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    row, column = i // 5, i % 5
    tap = tl.arange(0, 32)
    shift = (tap // 9) * 49 + (tap % 9 // 3) * 7 + tap % 3
    place = batch * 147 + shift[:, None] + (row * 7 + column)[None, :]
    x = tl.load(x_ptr + place, mask=(tap[:, None] < 27) & (i[None, :] < 25), other=0.0)
    total = tl.sum(x * tl.load(w_ptr + o * 27 + tap, mask=tap < 27, other=0.0)[:, None], axis=0)
    tl.store(out_ptr + batch * 100 + o * 25 + i, tl.maximum(total + tl.load(b_ptr + o), 0.0), mask=i < 25)


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3)

    def forward(self, x):
        out = x.new_empty(x.shape[0], self.conv.out_channels, x.shape[2] - 2, x.shape[3] - 2)
        conv[(x.shape[0], self.conv.out_channels)](x, self.conv.weight, self.conv.bias, out, BLOCK=32)
        return out
