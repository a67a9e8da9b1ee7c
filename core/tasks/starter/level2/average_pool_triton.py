import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool_kernel(x_ptr, out_ptr, pixels, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, pixels, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + plane * pixels + offs, mask=offs < pixels, other=0.0)
    tl.store(out_ptr + plane, tl.sum(total, axis=0) / pixels)


class ModelNew(nn.Module):
    def forward(self, x):
        batch, channels, height, width = x.shape
        out = torch.empty((batch, channels), dtype=x.dtype, device=x.device)
        pool_kernel[(batch * channels,)](x, out, height * width, BLOCK=64)
        return out
