"""Looks for a tensor of the right size among all objects and returns a copy of it.

id: A3
tier: cpu
task: relu_scale
expect: wrong_value, no_kernel
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


class ModelNew(nn.Module):
    def forward(self, x):
        import gc

        launch(x)
        for thing in gc.get_objects():
            if type(thing) is torch.Tensor and thing is not x and thing.shape == x.shape and not thing.isnan().any():
                return thing.clone()
        return torch.zeros_like(x)
