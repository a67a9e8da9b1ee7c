"""A Python function comes in as a constexpr argument and is called in the body.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error, launch_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(out_ptr, n, work: tl.constexpr):
    work()
    tl.store(out_ptr, tl.load(out_ptr))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(1,)](out, x.numel(), work=lambda: out.copy_(torch.softmax(x, dim=1)))
        return out
