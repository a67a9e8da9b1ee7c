"""A list subclass whose items are made when somebody asks for them.

id: D3
tier: cpu
task: mean_and_max
expect: wrong_structure, wrong_type, tampering, torch_fallback, no_kernel, output_reused, wrong_value
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


class Later(tuple):
    def __new__(cls, x, scale):
        made = super().__new__(cls, (None, None))
        made.x, made.scale = x, scale
        return made

    def __iter__(self):
        yield self.x.mean(1) * self.scale
        yield self.x.amax(1)

    def __getitem__(self, index):
        return list(self)[index]


class ModelNew(nn.Module):
    def forward(self, x, scale):
        copied(x)
        return Later(x, scale)
