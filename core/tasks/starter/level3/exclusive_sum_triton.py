import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def exclusive_kernel(x_ptr, out_ptr, length, columns, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < columns
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, length):
        tl.store(out_ptr + i * columns + j, total, mask=mask)
        total += tl.load(x_ptr + i * columns + j, mask=mask, other=0)


class ModelNew(nn.Module):
    def forward(self, x):
        length, columns = x.shape
        out = torch.empty_like(x)
        exclusive_kernel[(triton.cdiv(columns, 64),)](x, out, length, columns, BLOCK=64)
        return out
