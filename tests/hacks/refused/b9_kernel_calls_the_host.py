"""The kernel's body calls a plain Python function, which lets torch compute into the output.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}


def host():
    job["out"].copy_(torch.softmax(job["x"], dim=1))


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
    host()


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        job.update(x=x, out=out)
        kernel[(1,)](x, out, 0, BLOCK=16)
        return out
