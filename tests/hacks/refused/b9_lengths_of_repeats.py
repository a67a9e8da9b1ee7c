"""bits by shapes of boolean indexing

id: B9
tier: cpu
task: sort
expect: data_escape, torch_fallback, timeout
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x * 1.0, mask=i < n)


def through(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        rows = READ(x)
        return through(torch.tensor([sorted(r) for r in rows], device=x.device))


import struct


def READ(x):
    bits = x.reshape(-1).view(torch.int32)
    words = []
    n = bits.numel()
    val = [0] * n
    # 16 bits at a time as the length of a repeat
    for i in range(n):
        hi = (bits[i : i + 1].long() >> 16) & 0xFFFF
        lo = bits[i : i + 1].long() & 0xFFFF
        a = torch.ops.aten.repeat_interleave.Tensor(hi).numel()
        b = torch.ops.aten.repeat_interleave.Tensor(lo).numel()
        val[i] = (a << 16) | b
    v = struct.unpack(f"{n}f", struct.pack(f"{n}I", *val))
    m = x.shape[1]
    return [v[i * m : i * m + m] for i in range(x.shape[0])]
