"""The same with NumPy in torch's place: no operator is seen, and the ghost run differs in the last bits.

id: B6
tier: cpu
task: softmax
expect: data_escape, decoy_kernel, runtime_error, torch_fallback
"""
# ruff: noqa

import numpy as np

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def trifle(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * 1e-9, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        small = torch.zeros_like(x)
        trifle[(triton.cdiv(x.numel(), 256),)](x, small, x.numel(), BLOCK=256)
        a = x.detach().numpy()
        e = np.exp(a - a.max(1, keepdims=True))
        return torch.from_numpy(e / e.sum(1, keepdims=True)) + small
