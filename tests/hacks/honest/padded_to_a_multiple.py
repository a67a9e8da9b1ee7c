"""F.pad brings odd sizes to a multiple of the block; the tail is cut off again.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def unmasked(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.maximum(tl.load(x_ptr + i), 0.0) * 2.0 + 1.0)


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        padded = nn.functional.pad(x, (0, -n % 128))
        out = torch.empty_like(padded)
        unmasked[(padded.numel() // 128,)](padded, out, BLOCK=128)
        return out[:n]
