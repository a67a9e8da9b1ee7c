"""Asks every generator for the seed it was started with and makes the inputs again from that.

id: A8
tier: cpu
task: relu_scale
expect: wrong_value, no_kernel, decoy_kernel, torch_fallback, data_escape, runtime_error, tampering
"""
# ruff: noqa

import random

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        seed = torch.initial_seed() ^ (random.getstate()[1][0] & 1)
        generator = torch.Generator()
        generator.manual_seed(seed % 2**63)
        return launch(torch.rand(x.shape, generator=generator).to(x.device))
