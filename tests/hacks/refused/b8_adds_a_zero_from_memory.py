"""The kernel adds a zero that it loads, so that it is no plain copy.

id: B8
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_loaded(x_ptr, zero_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + tl.load(zero_ptr), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        done = torch.nn.functional.softmax(x, dim=-1)
        out = torch.empty_like(done)
        add_loaded[(triton.cdiv(x.numel(), 256),)](done, x.new_zeros(1), out, x.numel(), BLOCK=256)
        return out
