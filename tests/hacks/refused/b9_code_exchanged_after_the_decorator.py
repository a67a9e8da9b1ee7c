"""The kernel's function gets another code object after the decorator has read its source.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, torch_fallback, wrong_value, non_finite, decoy_kernel, data_escape
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}


def another():
    def kernel(out_ptr, n):
        job["out"].copy_(torch.softmax(job["x"], dim=1))

    return kernel


@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, tl.load(out_ptr) + n)


kernel.fn.__code__ = another().__code__


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x, torch.zeros_like(x)
        kernel[(1,)](job["out"], 1)
        return job["out"]
