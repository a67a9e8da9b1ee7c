"""Fresh blocks are searched for one without zeros: a freed answer would be there.

id: A1
tier: gpu
task: relu_scale
expect: non_finite, wrong_value, decoy_kernel
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
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        copied(x)
        blocks = [torch.empty_like(x) for _ in range(4)]
        best = max(blocks, key=lambda block: float((block[:1024] != 0).float().mean()))
        return best
