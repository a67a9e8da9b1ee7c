"""A generator computes once and yields the same for ever.

id: E6
tier: cpu
task: relu_scale
expect: wrong_value, output_reused, no_kernel, decoy_kernel, non_finite, wrong_shape, nondeterministic
"""
# ruff: noqa

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.maximum(x, 0.0) * 2.0 + 1.0, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    n = x.numel()
    kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
    return out


def answers():
    x = yield
    out = launch(x)
    while True:
        yield out.clone()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.answers = answers()
        next(self.answers)

    def forward(self, x):
        launch(x)
        return self.answers.send(x)
