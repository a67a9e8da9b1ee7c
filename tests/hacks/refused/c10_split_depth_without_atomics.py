"""Split-K: each slice adds into the output tile with load and store.

id: C10
tier: cpu
task: matmul
expect: race_condition, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def slices(a_ptr, b_ptr, out_ptr, N, K, PER: tl.constexpr, BN: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    n = tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    k = part * PER + tl.arange(0, PER)
    a = tl.load(a_ptr + row * K + k, mask=k < K, other=0.0)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
    total += tl.sum(a[:, None] * b, axis=0)
    place = out_ptr + row * N + n
    tl.store(place, tl.load(place, mask=n < N, other=0.0) + total, mask=n < N)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_zeros(a.shape[0], b.shape[1])
        grid = (a.shape[0], triton.cdiv(a.shape[1], 8))
        slices[grid](a, b, out, b.shape[1], a.shape[1], PER=8, BN=triton.next_power_of_2(b.shape[1]))
        return out
