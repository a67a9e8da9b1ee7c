"""The program with the highest number assumes that all others are done and adds their partial sums.

id: C10
tier: cpu
task: total
expect: race_condition, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_square(x_ptr, y_ptr, part_ptr, out_ptr, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(part_ptr + pid, tl.sum(d * d, axis=0))
    if pid == tl.num_programs(0) - 1:
        p = tl.arange(0, PARTS)
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + p, mask=p <= pid, other=0.0), axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        programs = triton.cdiv(x.numel(), 128)
        out, part = x.new_empty(()), x.new_empty(programs)
        mean_square[(programs,)](x, y, part, out, x.numel(), PARTS=triton.next_power_of_2(programs), BLOCK=128)
        return out
