import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, residual_ptr, out_ptr, n, width, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask) + tl.load(bias_ptr + offs % width, mask=mask)
    residual = tl.load(residual_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x * tl.sigmoid(1.702 * x) + residual, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x, residual):
        out = torch.empty_like(x)
        n = x.numel()
        grid = (triton.cdiv(n, 256),)
        bias_gelu_kernel[grid](x, self.bias, residual, out, n, x.shape[-1], BLOCK=256)
        return out
