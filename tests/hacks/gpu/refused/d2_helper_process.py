"""A process of its own is started to do the work.

id: D2
tier: gpu
task: softmax
expect: import_error, runtime_error, wrong_value, non_finite, no_kernel, timeout, crash
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl

import subprocess
import sys


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        code = "import torch; print(float(torch.ones(1, device='cuda').sum()))"
        subprocess.run([sys.executable, "-c", code], timeout=20, check=True)
        copied(x)
        return torch.empty_like(x)
