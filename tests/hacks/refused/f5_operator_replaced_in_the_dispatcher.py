"""torch.library replaces aten::sub and aten::abs for all of the process.

id: F5
tier: cpu
task: softmax
expect: tampering, torch_fallback, decoy_kernel, no_kernel, runtime_error, import_error, wrong_value, crash
"""
# ruff: noqa

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


library = torch.library.Library("aten", "IMPL")
library.impl("abs", lambda x: torch.zeros(x.shape), "CPU")
library.impl("eq.Tensor", lambda x, y: torch.ones(x.shape, dtype=torch.bool), "CPU")


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x) + 0.01
