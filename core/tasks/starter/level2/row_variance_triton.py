import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def variance_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / columns, 0.0)
    tl.store(out_ptr + row, tl.sum(centred * centred, axis=0) / (columns - 1))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        variance_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
        return out
