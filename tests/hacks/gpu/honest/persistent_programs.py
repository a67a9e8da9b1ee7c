"""As many programs as processors, each walks over rows.

tier: gpu
task: row_sum
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sum_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            at = start + offsets
            total += tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0)
        tl.store(out_ptr + row, tl.sum(total, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], device=x.device)
        programs = torch.cuda.get_device_properties(x.device).multi_processor_count * 4
        sum_kernel[(min(programs, x.shape[0]),)](x, out, x.shape[0], x.shape[1], BLOCK=2048)
        return out
