"""A Python function carries Triton's mark for builtins and is called like one.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error, import_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}


@tl.core.builtin
def finish(_semantic=None):
    job["out"].copy_(torch.softmax(job["x"], dim=1))


@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, 0.0)
    finish(_semantic=1)


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x, torch.empty_like(x)
        kernel[(1,)](job["out"], x.numel())
        return job["out"]
