"""The kernel is busy for long so that torch's share looks small.

id: B6
tier: gpu
task: softmax
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def busy_kernel(x_ptr, out_ptr, rounds):
    offsets = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + offsets)
    for _ in range(rounds):
        x = tl.sin(x) + 0.5
    tl.store(out_ptr + offsets, x)


class ModelNew(nn.Module):
    def forward(self, x):
        spare = torch.empty(1024 * 256, device=x.device)
        busy_kernel[(1024,)](x, spare, 400)
        return torch.softmax(x, dim=1)
