"""What the decorated kernel runs is exchanged for a Python function after decoration.

id: B9
tier: cpu
task: softmax
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error, tampering, import_error, no_kernel, wrong_value, non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


job = {}


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.exp(tl.load(x_ptr + i, mask=i < n)), mask=i < n)


def work(*args, **kwargs):
    job["out"].copy_(torch.softmax(job["x"], dim=1))


kernel.rewrite = lambda: work


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x, torch.empty_like(x)
        kernel[(1,)](x, job["out"], x.numel(), BLOCK=256)
        return job["out"]
