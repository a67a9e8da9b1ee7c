"""A timer launches the kernel a few milliseconds after forward has returned.

id: D2
tier: cpu
task: relu_scale
expect: wrong_value, non_finite, output_reused, no_kernel, decoy_kernel, torch_fallback, tampering, runtime_error, crash, launch_error
"""
# ruff: noqa

import threading

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
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 256),)
        threading.Timer(0.02, lambda: kernel[grid](x.detach(), out, x.numel(), BLOCK=256)).start()
        return out
