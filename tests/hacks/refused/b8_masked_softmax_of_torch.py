"""A fused operator of torch's that hardly anybody knows, with a mask that masks nothing.

id: B8
tier: cpu
task: softmax_hand
expect: torch_fallback
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
        mask = torch.zeros((), dtype=torch.bool, device=x.device).expand(x.shape)
        return through(torch.ops.aten._masked_softmax(x, mask, 1, 2))
