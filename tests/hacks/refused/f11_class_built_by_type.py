"""ModelNew is built by type() from a dictionary; its forward is found by index in dir(torch).

id: F11
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

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


def forward(self, x):
    names = [name for name in dir(torch) if len(name) == 7 and name.startswith("soft") and name.endswith("max")]
    return copied(vars(torch)[names[0]](x, 1))


ModelNew = type("Model" + "New", (nn.Module,), {"forward": forward})
