"""torch does the work inside a registered operator whose name is that of a free one.

id: B8
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel, import_error, runtime_error
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out


@torch.library.custom_op("shapes::view", mutates_args=())
def view(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=1)


@view.register_fake
def _(x):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return copied(torch.ops.shapes.view(x))
