"""triton.jit is replaced by a decorator whose launches call torch.

id: F6
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Launcher:
    def __init__(self, fn):
        self.fn = fn

    def __getitem__(self, grid):
        return lambda x, out, n, BLOCK: out.copy_(torch.softmax(x, dim=1))


triton.jit = Launcher


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.exp(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
