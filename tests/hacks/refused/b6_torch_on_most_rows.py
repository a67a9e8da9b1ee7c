"""torch on nine tenths of the rows, the kernel on the rest.

id: B6
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel
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


class ModelNew(nn.Module):
    def forward(self, x):
        few = max(1, x.shape[0] // 10)
        return torch.cat(
            [torch.softmax(x[few:], dim=1).new_empty(0, x.shape[1]), softmax(x[:few]), torch.softmax(x[few:], 1)]
        )
