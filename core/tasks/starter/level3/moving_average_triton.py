import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def average_kernel(x_ptr, out_ptr, length, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for back in tl.static_range(WINDOW):
        place = offs - back
        total += tl.load(x_ptr + row * length + place, mask=(place >= 0) & (place < length), other=0.0)
    out = total / tl.minimum(offs + 1, WINDOW)
    tl.store(out_ptr + row * length + offs, out, mask=offs < length)


class ModelNew(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, x):
        rows, length = x.shape
        out = torch.empty_like(x)
        average_kernel[(rows, triton.cdiv(length, 128))](x, out, length, WINDOW=self.window, BLOCK=128)
        return out
