"""Four configurations, the best is chosen at the first call.

tier: gpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (512, 2048) for warps in (4, 8)], key=["n"]
)
@triton.jit
def relu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x, out):
    relu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        return launch(x, torch.empty_like(x))
