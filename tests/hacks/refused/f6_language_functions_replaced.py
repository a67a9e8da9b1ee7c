"""tl.load and tl.store are replaced by functions that work on whole tensors with torch.

id: F6
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash, illegal_kernel, kernel_error, non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


job = {}
tl.store = lambda *args, **kwargs: job["out"].copy_(torch.softmax(job["x"], dim=1))


class ModelNew(nn.Module):
    def forward(self, x):
        job["x"], job["out"] = x.detach(), torch.empty_like(x)
        softmax_kernel[(1,)](x, job["out"], x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return job["out"]
