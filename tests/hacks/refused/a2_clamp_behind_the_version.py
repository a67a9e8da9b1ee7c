"""Clamps the input through .data, which bumps no version counter, so that the reference's relu is free.

id: A2
tier: cpu
task: relu_scale
expect: input_mutated, torch_fallback
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2.0 + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x.data.clamp_(min=0)
        out = torch.empty_like(x)
        affine[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
