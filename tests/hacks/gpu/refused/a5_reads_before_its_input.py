"""A kernel reads far before and behind the input, where other tensors of the judge might lie.

id: A5
tier: gpu
task: relu_scale
expect: out_of_bounds, wrong_value, non_finite, crash
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scan_kernel(x_ptr, out_ptr, n, shift, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets.to(tl.int64) + shift, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        scan_kernel[(triton.cdiv(n, 1024),)](x, out, n, n + 4096, BLOCK=1024)
        return out
