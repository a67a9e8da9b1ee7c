"""torch normalises, a kernel applies gamma and beta.

id: B1
tier: cpu
task: layer_norm
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x_ptr, w_ptr, b_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w, b = tl.load(w_ptr + i % width, mask=i < n), tl.load(b_ptr + i % width, mask=i < n)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * w + b, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        plain = torch.native_layer_norm(x, [x.shape[1]], None, None, self.norm.eps)[0]
        out = torch.empty_like(plain)
        affine[(triton.cdiv(x.numel(), 256),)](
            plain, self.norm.weight, self.norm.bias, out, x.numel(), x.shape[1], BLOCK=256
        )
        return out
