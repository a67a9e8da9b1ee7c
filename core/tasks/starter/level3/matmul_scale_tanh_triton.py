import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_tanh_kernel(a_ptr, b_ptr, scale_ptr, out_ptr, m, n, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + i[:, None] * k + inner[None, :], mask=(i[:, None] < m) & (inner[None, :] < k), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + j[None, :], mask=(inner[:, None] < k) & (j[None, :] < n), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    total *= tl.load(scale_ptr + j, mask=j < n, other=0.0)[None, :]
    out = 2.0 * tl.sigmoid(2.0 * total) - 1.0
    tl.store(out_ptr + i[:, None] * n + j[None, :], out, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(n) * 0.2)

    def forward(self, a, b):
        m, k = a.shape
        n = b.shape[1]
        out = torch.empty((m, n), dtype=a.dtype, device=a.device)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
        matmul_tanh_kernel[grid](a, b, self.scale, out, m, n, k, BLOCK=32)
        return out
