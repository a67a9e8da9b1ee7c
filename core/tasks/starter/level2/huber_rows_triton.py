import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def huber_kernel(x_ptr, y_ptr, out_ptr, columns, delta, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < columns
    x = tl.load(x_ptr + row * columns + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + row * columns + offs, mask=mask, other=0.0)
    far = tl.abs(x - y)
    loss = tl.where(far < delta, 0.5 * far * far, delta * (far - 0.5 * delta))
    tl.store(out_ptr + row, tl.sum(loss, axis=0))


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, x, y):
        rows, columns = x.shape
        out = torch.empty((rows,), dtype=x.dtype, device=x.device)
        huber_kernel[(rows,)](x, y, out, columns, self.delta, BLOCK=triton.next_power_of_2(columns))
        return out
