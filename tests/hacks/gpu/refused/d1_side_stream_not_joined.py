"""The work goes to a side stream that nobody joins: events on the current stream see nothing.

id: D1
tier: gpu
task: gelu_softmax
expect: tampering, wrong_value, non_finite
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row + offsets, mask=mask, other=0.0)
    y = x * tl.sigmoid(1.5957691216 * (x + 0.044715 * x * x * x))
    top = tl.max(tl.where(mask, y, -float("inf")), axis=0)
    e = tl.where(mask, tl.exp(y - top), 0.0)
    tl.store(out_ptr + row + offsets, e / tl.sum(e, axis=0) * y, mask=mask)


def whole(x):
    out = torch.empty_like(x)
    gelu_softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return out


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        with torch.cuda.stream(self.side):
            return whole(x)
