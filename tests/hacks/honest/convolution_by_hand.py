"""A direct convolution with all sizes as arguments.

tier: cpu
task: conv
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv(x_ptr, w_ptr, b_ptr, out_ptr, channels, height, width, outs, kh, kw, oh, ow, BLOCK: tl.constexpr):
    batch, o = tl.program_id(0), tl.program_id(1)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    row, column = i // ow, i % ow
    mask = i < oh * ow
    total = tl.zeros([BLOCK], tl.float32) + tl.load(b_ptr + o)
    for c in range(0, channels):
        for r in range(0, kh):
            for s in range(0, kw):
                place = ((batch * channels + c) * height + row + r) * width + column + s
                w = tl.load(w_ptr + ((o * channels + c) * kh + r) * kw + s)
                total += tl.load(x_ptr + place, mask=mask, other=0.0) * w
    tl.store(out_ptr + (batch * outs + o) * oh * ow + i, tl.maximum(total, 0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3)

    def forward(self, x):
        batch, channels, height, width = x.shape
        outs, _, kh, kw = self.conv.weight.shape
        oh, ow = height - kh + 1, width - kw + 1
        out = x.new_empty(batch, outs, oh, ow)
        sizes = (channels, height, width, outs, kh, kw, oh, ow)
        grid = (batch, outs, triton.cdiv(oh * ow, 64))
        conv[grid](x, self.conv.weight, self.conv.bias, out, *sizes, BLOCK=64)
        return out
