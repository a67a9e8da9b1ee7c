import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def join(a_left, b_left, a_right, b_right):
    return a_left * a_right, a_right * b_left + b_right


@triton.jit
def recurrence_kernel(a_ptr, b_ptr, out_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < length
    a = tl.load(a_ptr + row * length + offs, mask=mask, other=1.0)
    b = tl.load(b_ptr + row * length + offs, mask=mask, other=0.0)
    _, states = tl.associative_scan((a, b), 0, join)
    tl.store(out_ptr + row * length + offs, states, mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        rows, length = b.shape
        out = torch.empty_like(b)
        recurrence_kernel[(rows,)](a, b, out, length, BLOCK=triton.next_power_of_2(length))
        return out
