"""A decoy takes the __name__ of the real kernel, which never runs.

id: B11
tier: cpu
task: matmul
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, out_ptr, M, N, K, BK: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + row * K + k, mask=k < K, other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total += tl.sum(a[:, None] * b, axis=0)
    tl.store(out_ptr + row * N + n, total, mask=n < N)


real = gemm


@triton.jit
def gemm(a_ptr, b_ptr, out_ptr, M, N, K, BK: tl.constexpr, BN: tl.constexpr):
    tl.store(out_ptr, tl.load(out_ptr))


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = torch.mm(a, b)
        gemm[(1,)](a, b, out, *out.shape, a.shape[1], BK=16, BN=triton.next_power_of_2(b.shape[1]))
        return out
