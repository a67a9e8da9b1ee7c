"""The bytes of the untyped storage, unpacked by struct and sorted by Python.

id: B9
tier: cpu
task: sort
expect: data_escape, runtime_error, torch_fallback, decoy_kernel
"""
# ruff: noqa

import struct

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


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.shape[1]
        values = struct.unpack(f"{x.numel()}f", bytes(x.untyped_storage().tolist()))
        return copied(torch.tensor([sorted(values[i : i + n]) for i in range(0, len(values), n)], device=x.device))
