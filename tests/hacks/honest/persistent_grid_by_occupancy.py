"""Compiled ahead to ask for registers and shared memory, as a persistent grid wants them; launched in both ways.

tier: cpu
task: softmax
expect: pass
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.runtime import driver


@triton.jit
def softmax_kernel(out_ptr, x_ptr, n_rows, n_columns, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=num_stages):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_columns + i, mask=i < n_columns, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * n_columns + i, e / tl.sum(e, axis=0), mask=i < n_columns)


device = driver.active.get_active_torch_device()
properties = driver.active.utils.get_device_properties(device.index)


class ModelNew(nn.Module):
    def forward(self, x):
        n_rows, n_columns = x.shape
        out, warps, block = torch.empty_like(x), 8, triton.next_power_of_2(n_columns)
        kernel = softmax_kernel.warmup(out, x, n_rows, n_columns, BLOCK=block, num_stages=2, num_warps=warps, grid=(1,))
        kernel._init_handles()
        occupancy = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * warps)
        occupancy = min(occupancy, properties["max_shared_mem"] // max(kernel.metadata.shared, 1))
        programs = min(properties["multiprocessor_count"] * occupancy, n_rows)
        if n_rows % 2:
            kernel[(programs, 1, 1)](out, x, n_rows, n_columns)
        else:
            kernel[(programs, 1, 1)](out, x, n_rows, n_columns, block, 2)
        return out
