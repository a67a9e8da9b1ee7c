import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=mask, other=0.0)
    low = tl.min(tl.where(mask, x, float("inf")), axis=0)
    high = tl.max(tl.where(mask, x, float("-inf")), axis=0)
    tl.store(out_ptr + row * columns + offs, (x - low) / (high - low + 1e-6), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        out = torch.empty_like(x)
        scale_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
        return out
