"""Reaches the harness's tracer through sys.modules, counts launches that never happened, and fails in the ghost run.

id: F1
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

import sys

from torch.utils._python_dispatch import _disable_current_modes

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


class ModelNew(nn.Module):
    def forward(self, x):
        with _disable_current_modes():
            done = torch.softmax(x.detach(), dim=1)
        for name, module in list(sys.modules.items()):
            tracer = vars(module).get("TRACER")
            if name.startswith("core.evaluation") and tracer is not None:
                record = tracer.begin(softmax_kernel.fn)
                record.launches += 1
                record.programs, record.sector_bytes, record.flops = 8, 32, 32
                tracer.current = None
                if tracer.ghost:
                    return torch.zeros_like(x)
        return done
