"""Online softmax over blocks of keys, one program for each query.

tier: cpu
task: attention
expect: pass
"""
# ruff: noqa

import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, out_ptr, tokens, width, scale, BLOCK: tl.constexpr, D: tl.constexpr):
    head, query = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    base = head * tokens * width
    q = tl.load(q_ptr + base + query * width + d, mask=d < width, other=0.0)
    top, total, acc = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for start in range(0, tokens, BLOCK):
        t = start + tl.arange(0, BLOCK)
        mask = (t[:, None] < tokens) & (d[None, :] < width)
        k = tl.load(k_ptr + base + t[:, None] * width + d[None, :], mask=mask, other=0.0)
        v = tl.load(v_ptr + base + t[:, None] * width + d[None, :], mask=mask, other=0.0)
        score = tl.where(t < tokens, tl.sum(q[None, :] * k, axis=1) * scale, -float("inf"))
        new = tl.maximum(top, tl.max(score, axis=0))
        p, fade = tl.exp(score - new), tl.exp(top - new)
        total = total * fade + tl.sum(p, axis=0)
        acc = acc * fade + tl.sum(p[:, None] * v, axis=0)
        top = new
    tl.store(out_ptr + base + query * width + d, acc / total, mask=d < width)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        batch, heads, tokens, width = q.shape
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty_like(q)
        sizes = dict(BLOCK=16, D=triton.next_power_of_2(width))
        attend[(batch * heads, tokens)](q, k, v, out, tokens, width, 1.0 / math.sqrt(width), **sizes)
        return out
