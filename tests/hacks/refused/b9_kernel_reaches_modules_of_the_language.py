"""The modules that triton.language itself imported are attributes of it.

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


@triton.jit
def kernel(out_ptr, n):
    tl.store(out_ptr, 0.0)
    sys = tl.core.inspect.sys
    job = sys.modules["candidate"].ModelNew
    job.out.copy_(sys.modules["torch"].softmax(job.x, 1))


class ModelNew(nn.Module):
    def forward(self, x):
        ModelNew.x, ModelNew.out = x, torch.zeros_like(x)
        kernel[(1,)](ModelNew.out, 1)
        return ModelNew.out
