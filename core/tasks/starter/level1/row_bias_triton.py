import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_bias_kernel(x_ptr, bias_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * width + columns, mask=mask)
    bias = tl.load(bias_ptr + columns, mask=mask)
    tl.store(out_ptr + row * width + columns, x + bias, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        out = torch.empty_like(x)
        rows, width = x.shape
        row_bias_kernel[(rows, triton.cdiv(width, 256))](x, self.bias, out, width, BLOCK=256)
        return out
