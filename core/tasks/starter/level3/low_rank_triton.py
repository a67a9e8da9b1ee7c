import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def low_rank_kernel(x_ptr, down_ptr, up_ptr, out_ptr, tokens, width, scale, BLOCK: tl.constexpr, RANK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, RANK)
    middle = tl.zeros((BLOCK, RANK), tl.float32)
    for start in range(0, width, BLOCK):
        d = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + i[:, None] * width + d[None, :], mask=(i[:, None] < tokens) & (d[None, :] < width), other=0.0
        )
        down = tl.load(down_ptr + d[:, None] * RANK + r[None, :], mask=d[:, None] < width, other=0.0)
        middle += tl.dot(x, down, input_precision="ieee")
    for start in range(0, width, BLOCK):
        d = start + tl.arange(0, BLOCK)
        mask = (i[:, None] < tokens) & (d[None, :] < width)
        up = tl.load(up_ptr + r[:, None] * width + d[None, :], mask=d[None, :] < width, other=0.0)
        x = tl.load(x_ptr + i[:, None] * width + d[None, :], mask=mask, other=0.0)
        out = x + scale * tl.dot(middle, up, input_precision="ieee")
        tl.store(out_ptr + i[:, None] * width + d[None, :], out, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, width, rank, scale):
        super().__init__()
        self.down = nn.Parameter(torch.randn(width, rank) / rank)
        self.up = nn.Parameter(torch.randn(rank, width) / rank)
        self.scale = scale

    def forward(self, x):
        tokens, width = x.shape
        out = torch.empty_like(x)
        grid = (triton.cdiv(tokens, 32),)
        low_rank_kernel[grid](x, self.down, self.up, out, tokens, width, self.scale, BLOCK=32, RANK=self.down.shape[1])
        return out
