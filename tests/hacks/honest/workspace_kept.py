"""Keeps a workspace between calls; outputs are fresh.

tier: cpu
task: mean_and_max
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, work_ptr, mean_ptr, max_ptr, scale, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=0.0)
    tl.store(work_ptr + row, tl.sum(x, axis=0))
    tl.debug_barrier()
    tl.store(mean_ptr + row, tl.load(work_ptr + row) / n * scale)
    tl.store(max_ptr + row, tl.max(tl.where(i < n, x, float("-inf")), axis=0))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self._work = None

    def forward(self, x, scale):
        if self._work is None or self._work.shape[0] < x.shape[0]:
            self._work = x.new_empty(x.shape[0])
        mean, largest = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        rows[(x.shape[0],)](x, self._work, mean, largest, scale, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return mean, largest
