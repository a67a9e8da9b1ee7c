"""A device function, libdevice, tl.static_range, a constexpr global, the driver's device.

tier: cpu
task: relu_scale
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


from triton.language.extra import libdevice

DEVICE = triton.runtime.driver.active.get_active_torch_device()
TWO = tl.constexpr(2.0)


@triton.jit
def double_and_one(x):
    return x * TWO + 1.0


@triton.jit
def helped(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for part in tl.static_range(2):
        offsets = (tl.program_id(0) * 2 + part) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask)
        tl.store(out_ptr + offsets, double_and_one(libdevice.abs(tl.maximum(x, 0.0))), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape, device=DEVICE)
        helped[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=128)
        return out
