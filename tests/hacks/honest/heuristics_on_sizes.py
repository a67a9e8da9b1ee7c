"""Heuristics decide block size, evenness and warps from the sizes.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.heuristics(
    {
        "BLOCK": lambda args: triton.next_power_of_2(args["n"]),
        "EVEN": lambda args: args["n"] == triton.next_power_of_2(args["n"]),
        "num_warps": lambda args: 8 if args["n"] > 2048 else 4,
    }
)
@triton.jit
def softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + row * n + i)
    else:
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[1])
        return out
