import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row + offs, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + 1e-5)
    tl.store(out_ptr + row + offs, x * scale * tl.load(w_ptr + offs, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        out = torch.empty_like(x)
        rows, width = x.shape
        rms_norm_kernel[(rows,)](x, self.weight, out, width, BLOCK=triton.next_power_of_2(width), num_warps=16)
        return out
