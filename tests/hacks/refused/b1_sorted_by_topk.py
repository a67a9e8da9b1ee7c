"""torch.topk of everything sorts; a kernel turns the row round.

id: B1
tier: cpu
task: sort
expect: torch_fallback, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def turn_round(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(out_ptr + row * n + n - 1 - i, tl.load(x_ptr + row * n + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        found = x.topk(x.shape[1], dim=1).values.contiguous()
        out = torch.empty_like(found)
        turn_round[(x.shape[0],)](found, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
