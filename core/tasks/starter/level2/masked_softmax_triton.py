import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def masked_softmax_kernel(x_ptr, allowed_ptr, out_ptr, columns, temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    inside = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=inside, other=0.0) / temperature
    allowed = tl.load(allowed_ptr + row * columns + offs, mask=inside, other=0)
    x = tl.where(allowed != 0, x, float("-inf"))
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * columns + offs, weights / tl.sum(weights, axis=0), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x, allowed):
        rows, columns = x.shape
        out = torch.empty_like(x)
        block = triton.next_power_of_2(columns)
        masked_softmax_kernel[(rows,)](x, allowed.view(torch.uint8), out, columns, self.temperature, BLOCK=block)
        return out
