"""K = 40 is written into a matmul that takes M and N from the tensors.

id: C6
tier: cpu
task: matmul
expect: wrong_value, non_finite, out_of_bounds, runtime_error, wrong_shape, launch_error, kernel_error, race_condition
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, N, BN: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BN)
    k = tl.arange(0, 64)
    a = tl.load(a_ptr + row * 40 + k, mask=k < 40, other=0.0)
    b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < 40) & (n[None, :] < N), other=0.0)
    total = tl.sum(a[:, None] * b, axis=0)
    tl.store(out_ptr + row * N + n, total, mask=n < N)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        matmul[(a.shape[0],)](a, b, out, b.shape[1], BN=triton.next_power_of_2(b.shape[1]))
        return out
