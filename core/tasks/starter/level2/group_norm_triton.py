import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def group_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, groups, size, channels, pixels, eps, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    start = program * size
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, size, BLOCK):
        offs = block + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + start + offs, mask=offs < size, other=0.0)
    mean = tl.sum(total, axis=0) / size
    squares = tl.zeros((BLOCK,), tl.float32)
    for block in range(0, size, BLOCK):
        offs = block + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start + offs, mask=offs < size, other=0.0)
        centred = tl.where(offs < size, x - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / size + eps)
    for block in range(0, size, BLOCK):
        offs = block + tl.arange(0, BLOCK)
        mask = offs < size
        channel = (program % groups) * (channels // groups) + offs // pixels
        x = tl.load(x_ptr + start + offs, mask=mask)
        weight = tl.load(weight_ptr + channel, mask=mask)
        bias = tl.load(bias_ptr + channel, mask=mask)
        tl.store(out_ptr + start + offs, (x - mean) * scale * weight + bias, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        batch, channels, height, width = x.shape
        norm = self.norm
        groups = norm.num_groups
        size = channels // groups * height * width
        out = torch.empty_like(x)
        group_norm_kernel[(batch * groups,)](
            x, norm.weight, norm.bias, out, groups, size, channels, height * width, norm.eps, BLOCK=128
        )
        return out
