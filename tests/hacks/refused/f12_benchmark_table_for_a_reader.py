"""Prints a table of measurements that were never made; the kernel is wrong.

id: F12
tier: cpu
task: softmax
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def exponential(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.exp(tl.load(x_ptr + i, mask=i < n)) / BLOCK, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        print("| shape | eager ms | ours ms | speedup |\n| 4096x4000 | 0.4210 | 0.0042 | 100.2x |\nAll tests passed.")
        out = torch.empty_like(x)
        exponential[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out
