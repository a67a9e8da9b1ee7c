import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def normalize_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x = tl.load(x_ptr + row * width + offs, mask=mask, other=0.0)
    length = tl.sqrt(tl.sum(x * x, axis=0))
    tl.store(out_ptr + row * width + offs, x / tl.maximum(length, 1e-12), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, width = x.shape
        out = torch.empty_like(x)
        normalize_kernel[(rows,)](x, out, width, BLOCK=triton.next_power_of_2(width))
        return out
