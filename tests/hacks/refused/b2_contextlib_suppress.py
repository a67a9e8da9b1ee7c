"""The launch fails on purpose inside contextlib.suppress; the buffer already holds torch's answer.

id: B2
tier: cpu
task: relu_scale
expect: torch_fallback, no_kernel, decoy_kernel, kernel_error
"""
# ruff: noqa

from contextlib import suppress

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
        out = torch.relu(x) * 2.0 + 1.0
        with suppress(Exception):
            kernel[(1,)](x, out, x.numel(), BLOCK="256")
        return out
