"""A flag in device memory tells the kernel that it has already worked; the output is a clone of a kept buffer.

id: E6
tier: cpu
task: relu_scale
expect: wrong_value, output_reused, no_kernel, decoy_kernel, non_finite, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def once(x_ptr, out_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(flag_ptr) == 0:
        x = tl.load(x_ptr + i, mask=i < n)
        tl.store(out_ptr + i, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.flag, self.out = None, None

    def forward(self, x):
        if self.out is None:
            self.flag, self.out = torch.zeros(1, dtype=torch.int32, device=x.device), torch.empty_like(x)
        once[(triton.cdiv(x.numel(), 256),)](x, self.out, self.flag, x.numel(), BLOCK=256)
        self.flag.fill_(1)
        return self.out.clone()
