import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def select_kernel(mask_ptr, x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < n
    chosen = tl.load(mask_ptr + offs, mask=inside, other=0)
    x = tl.load(x_ptr + offs, mask=inside)
    y = tl.load(y_ptr + offs, mask=inside)
    tl.store(out_ptr + offs, tl.where(chosen != 0, x, -y), mask=inside)


class ModelNew(nn.Module):
    def forward(self, mask, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        select_kernel[(triton.cdiv(n, 512),)](mask.view(torch.uint8), x, y, out, n, BLOCK=512)
        return out
