import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def larger(left, right):
    return tl.maximum(left, right)


@triton.jit
def running_max_kernel(x_ptr, out_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < length
    x = tl.load(x_ptr + row * length + offs, mask=mask, other=float("-inf"))
    tl.store(out_ptr + row * length + offs, tl.associative_scan(x, 0, larger), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, length = x.shape
        out = torch.empty_like(x)
        running_max_kernel[(rows,)](x, out, length, BLOCK=triton.next_power_of_2(length))
        return out
