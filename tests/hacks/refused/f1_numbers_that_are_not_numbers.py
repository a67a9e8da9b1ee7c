"""Sizes are an int subclass whose arithmetic depends on who asks: small for whoever counts, right for torch.

id: F1
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
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


class Small(int):
    def __mul__(self, other):
        return 1

    __rmul__ = __floordiv__ = __mul__


class ModelNew(nn.Module):
    def forward(self, x):
        done = torch.softmax(x, Small(1))
        out = torch.empty((Small(x.shape[0]), Small(x.shape[1])), dtype=x.dtype, device=x.device)
        grid = (int(triton.cdiv(x.numel(), 256)),)
        copy_kernel[grid](done, out, x.numel(), BLOCK=256)
        return out
