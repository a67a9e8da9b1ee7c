"""Torch's softmax under the name that it has with a buffer, then a kernel that multiplies by one.

id: B8
tier: cpu
task: softmax_hand
expect: torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 1.0, mask=i < n)


def through(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        torch.softmax(x, dim=1, out=out)
        return through(out)
