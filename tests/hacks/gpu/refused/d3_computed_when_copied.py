"""torch.Tensor.copy_ and torch.take are replaced: they run the kernel that forward left out.

id: D3
tier: gpu
task: softmax
expect: wrong_value, non_finite, tampering, no_kernel, wrong_type
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + offsets, e / tl.sum(e, axis=0), mask=mask)


def softmax(x):
    out = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
    return out


PENDING = {}
copy, take = torch.Tensor.copy_, torch.take


def finish(tensor):
    x = PENDING.pop(tensor.data_ptr(), None)
    if x is not None:
        copy(tensor, softmax(x))


def late_copy(self, other, *args, **kwargs):
    finish(other)
    return copy(self, other, *args, **kwargs)


def late_take(tensor, index):
    finish(tensor)
    return take(tensor, index)


torch.Tensor.copy_, torch.take = late_copy, late_take


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        PENDING[out.data_ptr()] = x
        return out
