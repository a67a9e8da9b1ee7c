"""Collects pieces in a Python list, sorts it with a key, loops over a dict: no GPU language has that.

id: B9
tier: cpu
task: row_sum
expect: illegal_kernel, kernel_error, compile_error, data_escape, torch_fallback, decoy_kernel, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    parts = {"first": [], "second": []}
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
        parts["second" if start % 2 else "first"].append(tl.sum(part, axis=0))
    out = 0.0
    for name in sorted(parts, key=lambda name: -len(name)):
        out = sum(parts[name], out)
    tl.store(out_ptr + row, out)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=128)
        return out
