"""Leaves a build lock in the folder of torch's extensions, so that later builds wait for ever.

id: F7
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash, timeout
"""
# ruff: noqa

import os

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


import torch.utils.cpp_extension

folder = torch.utils.cpp_extension._get_build_directory("kernels", False)
with open(os.path.join(folder, "lock"), "w"):
    pass


class ModelNew(nn.Module):
    def forward(self, x):
        softmax(x)
        return x.softmax(1)
