import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def divide_kernel(x_ptr, divisor_ptr, quotient_ptr, rest_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=mask)
    divisor = tl.load(divisor_ptr + offs, mask=mask, other=1)
    tl.store(quotient_ptr + row * columns + offs, x // divisor, mask=mask)
    tl.store(rest_ptr + row * columns + offs, x % divisor, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, divisor):
        rows, columns = x.shape
        quotient, rest = torch.empty_like(x), torch.empty_like(x)
        divide_kernel[(rows, triton.cdiv(columns, 64))](x, divisor, quotient, rest, columns, BLOCK=64)
        return quotient, rest
