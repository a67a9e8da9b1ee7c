"""Attention: one head by the kernel's copy, all heads by torch.

id: B6
tier: cpu
task: attention
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        p = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        out = p @ v
        return torch.cat([copied(out[:, :1]), out[:, 1:]], dim=1)
