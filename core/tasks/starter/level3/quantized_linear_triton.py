import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def quantized_kernel(x_ptr, weight_ptr, scale_ptr, out_ptr, m, n, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i[:, None] * k + inner[None, :], mask=(i[:, None] < m) & (inner[None, :] < k), other=0.0)
        w = tl.load(weight_ptr + j[None, :] * k + inner[:, None], mask=(j[None, :] < n) & (inner[:, None] < k), other=0)
        total += tl.dot(x, w.to(tl.float32), input_precision="ieee")
    total *= tl.load(scale_ptr + j, mask=j < n, other=0.0)[None, :]
    tl.store(out_ptr + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    weight: torch.Tensor

    def __init__(self, width_in, width_out):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (width_out, width_in), dtype=torch.int8))
        self.scale = nn.Parameter(torch.rand(width_out) / 127.0)

    def forward(self, x):
        m, k = x.shape
        n = self.weight.shape[0]
        out = torch.empty((m, n), dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
        quantized_kernel[grid](x, self.weight, self.scale, out, m, n, k, BLOCK=32)
        return out
