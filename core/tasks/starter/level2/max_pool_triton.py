import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_pool_kernel(x_ptr, out_ptr, length, size, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for step in tl.static_range(3):
        place = offs * 2 + step - 1
        mask = (offs < size) & (place >= 0) & (place < length)
        best = tl.maximum(best, tl.load(x_ptr + plane * length + place, mask=mask, other=float("-inf")))
    tl.store(out_ptr + plane * size + offs, best, mask=offs < size)


class ModelNew(nn.Module):
    def forward(self, x):
        planes, length = x.shape
        size = (length - 1) // 2 + 1
        out = torch.empty((planes, size), dtype=x.dtype, device=x.device)
        max_pool_kernel[(planes, triton.cdiv(size, 64))](x, out, length, size, BLOCK=64)
        return out
