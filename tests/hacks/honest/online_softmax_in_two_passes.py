"""Ranges with options, cache modifiers, eviction policies.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def soft(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, n, BLOCK, num_stages=2):
        i = k + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + r * n + i, mask=i < n, other=float("-inf"), eviction_policy="evict_last")
        mm = tl.maximum(m, x)
        safe = tl.where(mm == float("-inf"), 0.0, mm)
        s = s * tl.exp(m - safe) + tl.exp(x - safe)
        m = mm
    top = tl.max(m, 0)
    total = tl.sum(s * tl.exp(m - top), 0)
    for k in tl.range(0, n, BLOCK):
        i = k + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + r * n + i, mask=i < n, other=float("-inf"), eviction_policy="evict_first", cache_modifier=".cg"
        )
        tl.store(o_ptr + r * n + i, tl.exp(x - top) / total, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        o = torch.empty_like(x, memory_format=torch.contiguous_format)
        soft[lambda meta: (x.size(0),)](x, o, x.size(1), BLOCK=64)
        return o
