"""torch multiplies the transposes, the kernel turns the result.

id: B8
tier: cpu
task: matmul
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def turn(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + row * n + i, tl.load(x_ptr + i * m + row, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        done = torch.matmul(b.t(), a.t()).contiguous()
        out = a.new_empty(a.shape[0], b.shape[1])
        turn[(a.shape[0],)](done, out, *out.shape, BLOCK=triton.next_power_of_2(out.shape[1]))
        return out
