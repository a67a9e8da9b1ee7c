"""Gets unwritten memory by resize_ instead of torch.empty, so that a poisoned torch.empty is not met.

id: A1
tier: cpu
task: relu_scale
expect: non_finite, wrong_value, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(0)
        out.resize_(x.shape)
        kernel[(1,)](x, out, 0, BLOCK=256)
        return out
