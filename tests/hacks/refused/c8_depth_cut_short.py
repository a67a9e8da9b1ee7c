"""The product stops one tile before the end of K.

id: C8
tier: cpu
task: matmul
expect: wrong_value, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, N, K, BN: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for start in range(0, K - 1, 16):
        k = start + tl.arange(0, 16)
        a = tl.load(a_ptr + row * K + k, mask=k < K - 1, other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < K - 1) & (n[None, :] < N), other=0.0)
        total += tl.sum(a[:, None] * b, axis=0)
    tl.store(out_ptr + row * N + n, total, mask=n < N)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        matmul[(a.shape[0],)](a, b, out, *b.shape[::-1], BN=triton.next_power_of_2(b.shape[1]))
        return out
