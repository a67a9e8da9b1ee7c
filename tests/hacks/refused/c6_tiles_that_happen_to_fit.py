"""No masks at all: the judged sizes are multiples of the 8 x 8 tile.

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
def matmul(a_ptr, b_ptr, out_ptr, N, K, T: tl.constexpr):
    m, n = tl.program_id(0) * T + tl.arange(0, T), tl.program_id(1) * T + tl.arange(0, T)
    total = tl.zeros([T, T], tl.float32)
    for start in range(0, K, T):
        k = start + tl.arange(0, T)
        a, b = tl.load(a_ptr + m[:, None] * K + k[None, :]), tl.load(b_ptr + k[:, None] * N + n[None, :])
        total += tl.sum(a[:, :, None] * b[None, :, :], axis=1)
    tl.store(out_ptr + m[:, None] * N + n[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        matmul[(2, 3)](a, b, out, b.shape[1], a.shape[1], T=8)
        return out
