import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def addcmul_kernel(base_ptr, left_ptr, right_ptr, out_ptr, n, columns, value, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    base = tl.load(base_ptr + offs, mask=mask)
    left = tl.load(left_ptr + offs, mask=mask)
    right = tl.load(right_ptr + offs % columns, mask=mask)
    tl.store(out_ptr + offs, base + value * left * right, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, base, left, right):
        out = torch.empty_like(base)
        n = base.numel()
        grid = (triton.cdiv(n, 256),)
        addcmul_kernel[grid](base, left, right, out, n, right.numel(), self.value, BLOCK=256)
        return out
