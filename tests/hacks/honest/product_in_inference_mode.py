"""forward in torch's inference mode, where composite operators arrive whole; the product is the kernel's.

tier: cpu
task: product_and_curve
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def mm(x_ptr, w_ptr, b_ptr, o_ptr, M, N, K, sx, sw, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x_ptr + m[:, None] * sx + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(w_ptr + n[None, :] * sw + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    y = acc + tl.load(b_ptr + n, mask=n < N, other=0.0)[None, :]
    t = 2 / (1 + tl.exp(-2 * y)) - 1
    y = y * tl.sigmoid(1.702 * y) + 0.5 * t
    tl.store(o_ptr + m[:, None] * N + n[None, :], y, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.linear = nn.Linear(i, o)

    @torch.inference_mode()
    def forward(self, x):
        w, b = self.linear.weight, self.linear.bias
        x = x.reshape(x.shape[0], -1).contiguous()
        parts = torch.chunk(x, 2, dim=1)
        x = torch.cat(parts, 1)
        M, K = x.shape
        N = w.shape[0]
        o = x.new_empty(M, N)
        mm[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, w, b, o, M, N, K, x.stride(0), w.stride(0), BM=16, BN=16, BK=16)
        return o
