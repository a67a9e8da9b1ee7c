import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def residual_norm_kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, total_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row * width + offs, mask=mask, other=0.0)
    total = x + tl.load(residual_ptr + row * width + offs, mask=mask, other=0.0)
    centred = tl.where(mask, total - tl.sum(total, axis=0) / width, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + 1e-5)
    weight = tl.load(weight_ptr + offs, mask=mask)
    bias = tl.load(bias_ptr + offs, mask=mask)
    tl.store(out_ptr + row * width + offs, centred * scale * weight + bias, mask=mask)
    tl.store(total_ptr + row * width + offs, total, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x, residual):
        rows, width = x.shape
        out, total = torch.empty_like(x), torch.empty_like(x)
        block = triton.next_power_of_2(width)
        residual_norm_kernel[(rows,)](x, residual, self.weight, self.bias, out, total, width, BLOCK=block)
        return out, total
