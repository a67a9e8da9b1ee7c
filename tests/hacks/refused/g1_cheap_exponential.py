"""exp(x) as (1 + x / 256) ** 256: within a percent.

id: G1
tier: cpu
task: softmax
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = 1.0 + tl.maximum(x - tl.max(x, axis=0), -255.0) / 256.0
    for _ in tl.static_range(8):
        e = e * e
    e = tl.where(i < n, e, 0.0)
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
