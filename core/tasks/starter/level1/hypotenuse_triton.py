import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def hypotenuse_kernel(x_ptr, y_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + row * columns + offs, tl.sqrt(x * x + y * y + 1e-6), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        rows, columns = x.shape
        out = torch.empty_like(x)
        hypotenuse_kernel[(rows, triton.cdiv(columns, 128))](x, y, out, columns, BLOCK=128)
        return out
