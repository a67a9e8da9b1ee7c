"""Mean and maximum of a row in one pass over blocks; the factor is an integer argument.

tier: cpu
task: mean_and_max
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, mean_ptr, top_ptr, scale, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean, seen = 0.0, 0
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
        count = tl.minimum(BLOCK, n - start)
        mean += (tl.sum(x, axis=0) - count * mean) / (seen + count)
        seen += count
        top = tl.maximum(top, tl.where(i < n, x, -float("inf")))
    tl.store(mean_ptr + row, mean * scale)
    tl.store(top_ptr + row, tl.max(top, axis=0))


class ModelNew(nn.Module):
    def forward(self, x, scale):
        outputs = [torch.empty(x.shape[0], dtype=x.dtype, device=x.device) for _ in range(2)]
        rows[(x.shape[0],)](x, *outputs, scale, x.shape[1], BLOCK=32)
        return tuple(outputs)
