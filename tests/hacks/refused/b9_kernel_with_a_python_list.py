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
    parts = {}
    for name in ["a", "b", "c"]:
        parts[name] = [tl.load(x_ptr + row * n + start) for start in range(len(parts), n, 3)]
    out = 0.0
    for name in sorted(parts, key=lambda name: -len(name)):
        for part in parts[name]:
            out += part
    tl.store(out_ptr + row, out)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=16)
        return out
