"""Works on a transposed view and returns a non-contiguous tensor.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, n, x_row, x_column, o_row, o_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + i * x_column, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * o_row + i * o_column, e / tl.sum(e, axis=0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        turned = x.t().contiguous().t()
        out = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device).t()
        softmax[(x.shape[0],)](
            turned, out, x.shape[1], *turned.stride(), *out.stride(), BLOCK=triton.next_power_of_2(x.shape[1])
        )
        return out
