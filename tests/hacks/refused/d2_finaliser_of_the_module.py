"""Work is left to a finaliser of a temporary object, which runs when forward's frame dies.

id: D2
tier: cpu
task: softmax
expect: torch_fallback, wrong_value, non_finite, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class Late:
    def __init__(self, x, out):
        self.x, self.out = x, out

    def __del__(self):
        self.out.copy_(torch.softmax(self.x, dim=1))


class ModelNew(nn.Module):
    def forward(self, x):
        out = copied(x)
        late = Late(x, out)
        return out
