"""Every program stores a partial sum and counts itself; the last to arrive adds all parts.

tier: cpu
task: total
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_square(x_ptr, y_ptr, part_ptr, count_ptr, out_ptr, n, programs, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(x_ptr + i, mask=i < n, other=0.0) - tl.load(y_ptr + i, mask=i < n, other=0.0)
    tl.store(part_ptr + pid, tl.sum(d * d, axis=0))
    tl.debug_barrier()
    arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel")
    if arrived == programs - 1:
        tl.debug_barrier()
        p = tl.arange(0, PARTS)
        parts = tl.load(part_ptr + p, mask=p < programs, other=0.0, volatile=True)
        tl.store(out_ptr, tl.sum(parts, axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        programs = triton.cdiv(x.numel(), 128)
        part, out = x.new_empty(programs), x.new_empty(())
        count = torch.zeros(1, dtype=torch.int32, device=x.device)
        parts = triton.next_power_of_2(programs)
        mean_square[(programs,)](x, y, part, count, out, x.numel(), programs, PARTS=parts, BLOCK=128)
        return out
