"""Adds the operator's name to the harness's list of free operators.

id: F1
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import sys

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


for name, module in list(sys.modules.items()):
    if name.endswith("aten_costs"):
        module.FREE = module.FREE | {"_softmax", "softmax", "amax", "exp", "sum", "div"}


class ModelNew(nn.Module):
    def forward(self, x):
        return copied(torch.softmax(x, dim=1))
