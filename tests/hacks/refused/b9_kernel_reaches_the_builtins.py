"""From tl.load to its globals, from there to Python's builtins and to torch: no import, no call of an own function.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, launch_error, runtime_error, tampering, import_error, torch_fallback, data_escape, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x, torch.zeros_like(x)
        kernel[(1,)](job["out"], 1)
        return job["out"]


@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, 0.0)
    modules = tl.zeros.fn.__globals__["__builtins__"]["__import__"]("sys").modules
    job = modules["candidate"].job
    job["out"].copy_(modules["torch"].softmax(job["x"], 1))
