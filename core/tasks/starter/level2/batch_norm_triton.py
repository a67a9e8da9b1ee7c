import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def batch_norm_kernel(
    x_ptr, mean_ptr, variance_ptr, weight_ptr, bias_ptr, out_ptr, channels, pixels, BLOCK: tl.constexpr
):
    plane = tl.program_id(0)
    channel = plane % channels
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < pixels
    scale = tl.load(weight_ptr + channel) / tl.sqrt(tl.load(variance_ptr + channel) + 1e-5)
    shift = tl.load(bias_ptr + channel) - tl.load(mean_ptr + channel) * scale
    x = tl.load(x_ptr + plane * pixels + offs, mask=mask)
    tl.store(out_ptr + plane * pixels + offs, x * scale + shift, mask=mask)


class ModelNew(nn.Module):
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels))
        self.register_buffer("mean", torch.randn(channels))
        self.register_buffer("variance", torch.rand(channels) + 0.5)

    def forward(self, x):
        batch, channels, pixels = x.shape
        out = torch.empty_like(x)
        grid = (batch * channels, triton.cdiv(pixels, 256))
        batch_norm_kernel[grid](x, self.mean, self.variance, self.weight, self.bias, out, channels, pixels, BLOCK=256)
        return out
