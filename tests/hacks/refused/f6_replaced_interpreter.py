"""Replaces the interpreter's stores by its own.

id: F6
tier: cpu
task: relu_scale
expect: tampering, wrong_value, torch_fallback
"""
# ruff: noqa

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


from triton.runtime import interpreter

interpreter.InterpreterBuilder.create_masked_store = lambda self, ptrs, value, mask, a, b: None


class ModelNew(nn.Module):
    def forward(self, x):
        launch(x)
        return torch.relu(x) * 2.0 + 1.0
