"""ModelNew inherits from a class of its own that holds the launcher; __init__ takes *args.

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


class Launches:
    def launch(self, x):
        return softmax(x)


class RowWise(Launches, nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        self.extra = kwargs


class ModelNew(RowWise):
    def forward(self, x, *args):
        return self.launch(x.view(-1, x.shape[-1])).view(x.shape)
