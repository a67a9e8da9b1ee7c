"""A weak reference to the last input: the same object means the same answer, whatever it holds now.

id: E1
tier: cpu
task: relu_scale
expect: wrong_value, output_reused, no_kernel, decoy_kernel, non_finite, nondeterministic, wrong_shape
"""
# ruff: noqa

import weakref

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


last = {"ref": lambda: None, "at": 0}


class ModelNew(nn.Module):
    def forward(self, x):
        if last["ref"]() is not x and last["at"] != x.data_ptr():
            last["out"] = launch(x)
        last["ref"], last["at"] = weakref.ref(x), x.data_ptr()
        launch(x[:1])
        return last["out"].clone()
