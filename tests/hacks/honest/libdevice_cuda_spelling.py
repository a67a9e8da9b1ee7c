"""tanh of libdevice, imported from triton.language.extra.cuda.

tier: cpu
task: residual
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.language.extra.cuda import libdevice


@triton.jit
def residual(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + 0.01 * libdevice.tanh(x), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        residual[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
