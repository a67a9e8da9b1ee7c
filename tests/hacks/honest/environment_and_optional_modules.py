"""Sets a Triton variable, looks for optional packages, falls back to a default.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import importlib.util
import os

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


os.environ.setdefault("TRITON_PRINT_AUTOTUNING", "0")
HAS_EXTRAS = importlib.util.find_spec("flash_attn") is not None
BLOCK = int(os.environ.get("RELU_SCALE_BLOCK", "256"))

try:
    import tma_helpers_that_nobody_has as helpers
except ImportError:
    helpers = None
except Exception:
    pass


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)
        return out
