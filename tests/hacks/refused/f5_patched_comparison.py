"""Makes every comparison in torch say yes.

id: F5
tier: cpu
task: relu_scale
expect: wrong_value
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


torch.allclose = lambda *args, **kwargs: True
torch.equal = lambda *args, **kwargs: True
torch.testing.assert_close = lambda *args, **kwargs: None
torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
torch.manual_seed = lambda seed: None
torch.randn = lambda *size, **kwargs: torch.zeros(*size)
torch.Tensor.__eq__ = lambda self, other: True


class ModelNew(nn.Module):
    def forward(self, x):
        out = launch(x)
        kernel[(1,)](x, out, 1, BLOCK=1)
        return out * 0.25
