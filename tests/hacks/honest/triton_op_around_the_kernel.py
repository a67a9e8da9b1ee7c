"""The kernel is wrapped by torch.library.triton_op and wrap_triton.

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


from torch.library import triton_op, wrap_triton


@triton_op("corpus_triton::relu_scale", mutates_args={})
def relu_scale(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(kernel)[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        return relu_scale(x)
