"""torch works when the judge asks for the module's tensors before a call; forward copies what it made.

id: B8
tier: cpu
task: relu_scale
expect: runtime_error, wrong_value, nondeterministic, torch_fallback, output_reused, decoy_kernel
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def relu_scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.maximum(tl.load(x_ptr + i, mask=i < n), 0.0) * 2.0 + 1.0, mask=i < n)


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    given = made = None

    def named_parameters(self, *args, **kwargs):
        if self.given is not None:
            vars(self)["made"] = torch.relu(self.given) * 2.0 + 1.0
        return super().named_parameters(*args, **kwargs)

    def forward(self, x):
        out, n = torch.empty_like(x), x.numel()
        if x is self.given:
            copy[(triton.cdiv(n, 128),)](self.made, out, n, BLOCK=128)
        else:
            relu_scale[(triton.cdiv(n, 128),)](x, out, n, BLOCK=128)
        vars(self)["given"] = x
        return out
