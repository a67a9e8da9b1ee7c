import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row * width + offs, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / width, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    weight = tl.load(weight_ptr + offs, mask=mask)
    bias = tl.load(bias_ptr + offs, mask=mask)
    out = centred / tl.sqrt(variance + eps) * weight + bias
    tl.store(out_ptr + row * width + offs, out, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        rows, width = x.shape
        out = torch.empty_like(x)
        norm = self.norm
        block = triton.next_power_of_2(width)
        layer_norm_kernel[(rows,)](x, norm.weight, norm.bias, out, width, norm.eps, BLOCK=block)
        return out
