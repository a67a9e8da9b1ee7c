"""A heuristic of the kernel gets the arguments and computes on them.

id: B8
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel, illegal_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


def fill(args):
    args["x_ptr"].copy_(torch.softmax(args["x_ptr"], dim=1))
    return 256


@triton.heuristics({"BLOCK": fill})
@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        own, out = x.detach().clone(), torch.empty_like(x)
        copy[(triton.cdiv(x.numel(), 256),)](own, out, x.numel())
        return out
