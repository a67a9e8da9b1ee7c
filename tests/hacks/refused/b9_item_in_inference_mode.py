"""item in inference mode

id: B9
tier: cpu
task: sort
expect: data_escape
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


def READ(x):
    with torch.inference_mode():
        return [[x[i, j].item() for j in range(x.shape[1])] for i in range(x.shape[0])]
