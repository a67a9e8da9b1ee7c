"""Layer norm with an epsilon of 1e-6 where the reference has 1e-5: it shows in rows of small variance only.

id: G2
tier: cpu
task: layer_norm
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm(x_ptr, weight_ptr, bias_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    centred = tl.where(i < n, x - tl.sum(x, axis=0) / n, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + 1e-6)
    weight, bias = tl.load(weight_ptr + i, mask=i < n), tl.load(bias_ptr + i, mask=i < n)
    tl.store(out_ptr + row * n + i, centred * scale * weight + bias, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = torch.empty_like(x)
        layer_norm[(x.shape[0],)](
            x, self.norm.weight, self.norm.bias, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
        )
        return out
