import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine_kernel(x_ptr, scale_ptr, shift_ptr, out_ptr, channels, pixels, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < pixels
    scale = tl.load(scale_ptr + plane % channels)
    shift = tl.load(shift_ptr + plane % channels)
    x = tl.load(x_ptr + plane * pixels + offs, mask=mask)
    tl.store(out_ptr + plane * pixels + offs, x * scale + shift, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)
        self.shift = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        batch, channels, pixels = x.shape
        out = torch.empty_like(x)
        grid = (batch * channels, triton.cdiv(pixels, 256))
        affine_kernel[grid](x, self.scale, self.shift, out, channels, pixels, BLOCK=256)
        return out
