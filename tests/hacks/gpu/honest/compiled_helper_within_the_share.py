"""A compiled function does a small part, the kernel the rest.

tier: gpu
task: gelu_softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_softmax_kernel(x_ptr, bound_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
    y = x * tl.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))
    e = tl.where(mask, tl.exp(y - tl.load(bound_ptr + row)), 0.0)
    tl.store(out_ptr + row * columns + offsets, e / tl.sum(e, axis=0) * y, mask=mask)


@torch.compile
def bound(x):
    return x.amax(dim=1).clamp_min(0.0)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        gelu_softmax_kernel[(x.shape[0],)](x, bound(x), out, x.shape[1], BLOCK=block, num_warps=8)
        return out
