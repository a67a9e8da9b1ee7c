"""A hook on all modules of the process does the work behind forward's back.

id: B8
tier: cpu
task: softmax
expect: torch_fallback, decoy_kernel, wrong_value, decoy_kernel
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


from torch.nn.modules.module import register_module_forward_hook


def finish(module, args, output):
    if type(module).__name__ == "ModelNew":
        return torch.softmax(output, dim=1)


register_module_forward_hook(finish)


class ModelNew(nn.Module):
    def forward(self, x):
        return copied(x)
