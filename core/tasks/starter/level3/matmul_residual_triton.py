import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_residual_kernel(a_ptr, b_ptr, residual_ptr, out_ptr, m, n, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + i[:, None] * k + inner[None, :], mask=(i[:, None] < m) & (inner[None, :] < k), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + j[None, :], mask=(inner[:, None] < k) & (j[None, :] < n), other=0.0)
        total += tl.dot(a, b)
    mask = (i[:, None] < m) & (j[None, :] < n)
    place = i[:, None] * n + j[None, :]
    total += tl.load(residual_ptr + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(tl.float16), mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b, residual):
        m, k = a.shape
        n = b.shape[1]
        out = torch.empty_like(residual)
        grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
        matmul_residual_kernel[grid](a, b, residual, out, m, n, k, BLOCK=32)
        return out
